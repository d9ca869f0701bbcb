"""Files and facts that the suite of model loaders asks about, in this process and in others; knows no format."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.checkpoint import CheckpointFacts
from graftlm.plugins.resolve import resolve_class_path

if TYPE_CHECKING:
    import torch


def config_of(facts: CheckpointFacts) -> EngineConfig:
    """Resolve just enough of a configuration to read weights."""
    config = EngineConfig()
    config.model.path, config.model.format, config.model.hf_config = facts.path, facts.format, facts.hf_config
    config.freeze()
    return config


def facts_of(path: str, checkpoint: str) -> tuple[dict[str, Any], bool]:
    """Return the facts as plain data, and whether torch is imported now; called in another process."""
    facts = resolve_class_path(path)().read_facts(Path(checkpoint))
    return msgspec.to_builtins(facts), "torch" in sys.modules


def sums_of(path: str, checkpoint: str) -> dict[str, Any]:
    """Return the facts and a sum of each tensor, as plain data; called in another process too."""
    loader = resolve_class_path(path)()
    facts = loader.read_facts(Path(checkpoint))
    weights = loader.iterate_weights(config_of(facts))
    return {"facts": msgspec.to_builtins(facts)} | {
        name: float(numbers_of(w).double().sum()) for name, w in weights
    }


def numbers_of(weight: Any) -> torch.Tensor:
    """Return a tensor as it is, and a QuantizedWeight dequantized to float32."""
    import torch

    numbers: torch.Tensor = weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)
    return numbers


def foreign_files(folder: Path) -> dict[str, Path]:
    """Make what no loader should take: nothing, an empty directory, a text, a config without weights."""
    (folder / "empty").mkdir()
    (folder / "config only").mkdir()
    (folder / "config only" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "notes.txt").write_text("no model")
    (folder / "empty.bin").touch()
    return {
        "a path that does not exist": folder / "no-such", "an empty directory": folder / "empty",
        "a directory with a config.json alone": folder / "config only", "a text file": folder / "notes.txt",
        "an empty file": folder / "empty.bin",
    }  # fmt: skip


@contextlib.contextmanager
def damaged(path: Path, name: str, share: float) -> Iterator[Path]:
    """Copy a checkpoint, with only that share of one of its files."""
    with tempfile.TemporaryDirectory(prefix="graftlm-damaged-") as folder:
        copy = Path(folder, path.name)
        (shutil.copy if path.is_file() else shutil.copytree)(path, copy)
        file = copy if path.is_file() else copy / name
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])
        yield copy
