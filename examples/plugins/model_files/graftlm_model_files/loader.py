"""The loader of checkpoints as numpy archives: config.json and tokenizer.json as usual, weights in weights.npz.

The front end imports this module to read facts, so torch is imported only where tensors are made.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.contracts.errors import StartupError

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight

WEIGHTS = "weights.npz"


class NpzLoader(ModelLoader):
    """Reads a directory with weights.npz."""

    format = "npz"

    def claims(self, path: Path) -> bool:
        return (path / WEIGHTS).is_file()

    def read_facts(self, path: Path) -> CheckpointFacts:
        if not (path / "config.json").is_file():
            raise StartupError(
                f"the checkpoint {str(path)!r} has no config.json beside its {WEIGHTS}; add the model's"
            )
        tokenizer = path / "tokenizer.json"
        return CheckpointFacts(
            path=str(path),
            format=self.format,
            hf_config=_read(path / "config.json"),
            generation_config=_read(path / "generation_config.json"),
            tokenizer=str(tokenizer) if tokenizer.is_file() else None,
            chat_template=_read(path / "tokenizer_config.json").get("chat_template"),
        )

    def iterate_weights(self, config: EngineConfig) -> Iterator[tuple[str, Weight]]:
        import numpy as np
        import torch

        file = Path(config.model.path) / WEIGHTS
        try:
            with np.load(file) as arrays:
                for name in arrays.files:
                    yield name, torch.from_numpy(arrays[name])
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise StartupError(f"{str(file)!r} is damaged ({error}); convert the checkpoint again") from error

    @classmethod
    def write_example(cls, source: Path, folder: Path) -> Path:
        from graftlm_model_files.convert import convert

        return convert(source, folder)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise StartupError(f"{str(file)!r} is no JSON object ({error}); copy it again") from error
