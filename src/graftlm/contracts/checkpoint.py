"""The contracts of model sources and model loaders, and what a checkpoint says without torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight


class CheckpointFacts(msgspec.Struct, kw_only=True):
    """What a checkpoint says about itself, read without torch.

    `hf_config` speaks Hugging Face's words whatever the file's own. `tokenizer` is the path of a
    tokenizer.json, or the checkpoint itself when it carries the vocabulary (GGUF), or None.
    """

    path: str
    format: str
    hf_config: dict[str, Any]
    generation_config: dict[str, Any] = {}
    tokenizer: str | None = None
    chat_template: str | None = None


class ModelSource(ABC):
    """Turns what the user typed for MODEL into a path on this machine. Entry-point name: its scheme."""

    scheme: ClassVar[str]

    @abstractmethod
    def claims(self, model: str) -> bool:
        """Tell whether this source knows how to fetch `model`, without touching the network."""

    @abstractmethod
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        """Make `model` present and return its directory or file; raises StartupError with the cure."""


class ModelLoader(ABC):
    """Reads one checkpoint format. Entry-point name: the format."""

    format: ClassVar[str]

    @abstractmethod
    def claims(self, path: Path) -> bool: ...

    @abstractmethod
    def read_facts(self, path: Path) -> CheckpointFacts:
        """Read config, tokenizer place and chat template; imports no torch."""

    @abstractmethod
    def iterate_weights(self, config: EngineConfig) -> Iterator[tuple[str, Weight]]:
        """Yield the tensors under Hugging Face names, memory-mapped where possible; runs in workers."""

    @classmethod
    def write_example(cls, source: Path, folder: Path) -> Path | None:
        """Write `source`, a Hugging Face directory, in this format into the empty `folder`, for the conformance
        suite; returns its path, or None where this package cannot write the format.
        """
        return None
