"""Checkpoints on disk: which loader reads one, what it says without torch, and its tensors.

It does not know where a checkpoint came from, nor which architecture it feeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import MODEL_LOADERS
from graftlm.models.checkpoints.errors import UnsupportedCheckpoint, nearest
from graftlm.models.extensions import calling_extension, load_extension, provided_names
from graftlm.plugins import record
from graftlm.plugins.spelling import hidden_last

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight

__all__ = ["iterate_weights", "load_formats", "read_facts"]

_BUILT_IN = {
    "gguf": "graftlm.models.checkpoints.gguf_loader:GGUFLoader",
    "safetensors": "graftlm.models.checkpoints.safetensors:SafetensorsLoader",
}


def load_formats() -> list[str]:
    """Name what --load-format may be, beside 'auto'."""
    return provided_names(MODEL_LOADERS, _BUILT_IN)


def read_facts(path: Path | str, load_format: str = "auto") -> CheckpointFacts:
    """Read what a checkpoint says about itself; imports no torch."""
    path = Path(path)
    if load_format != "auto":
        return _read_facts(load_format, path)
    for name in load_formats():  # the engine's own first: a plugin's is imported only when they decline
        loader = _loader(name)
        with calling_extension(MODEL_LOADERS, name, "ModelLoader.claims"):
            claims = loader.claims(path)
        if claims:
            return _read_facts(name, path)
    if (path / "config.json").is_file() and "safetensors" in load_formats():
        return _read_facts("safetensors", path)  # which says what it found instead of weights
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    found = ", ".join(sorted(names, key=hidden_last)[:6])
    raise UnsupportedCheckpoint(
        path,
        problem=f"no loader of {', '.join(load_formats())} reads it (found {found or 'nothing'})",
        cure="give a directory with config.json and .safetensors files, or a .gguf file",
    )


def iterate_weights(config: EngineConfig) -> Iterator[tuple[str, Weight]]:
    """Yield the checkpoint's tensors under Hugging Face names, memory-mapped where possible."""
    name = config.model.format
    weights = iter(_loader(name).iterate_weights(config))
    while True:
        with calling_extension(MODEL_LOADERS, name, "ModelLoader.iterate_weights"):
            found = next(weights, None)
        if found is None:
            return
        yield found


def _read_facts(name: str, path: Path) -> CheckpointFacts:
    with calling_extension(MODEL_LOADERS, name, "ModelLoader.read_facts"):
        facts = _loader(name).read_facts(path)
    record("checkpoint_read", format=name, path=str(path))
    if not isinstance(facts, CheckpointFacts):
        raise StartupError(f"the loader of format {name!r} returned {facts!r} from read_facts, no CheckpointFacts")
    return facts


def _loader(name: str) -> ModelLoader:
    if name not in load_formats():
        raise StartupError(
            f"--load-format={name!r} is unknown{nearest(name, load_formats())}; "
            f"choose auto or one of {', '.join(load_formats())}"
        )
    cls = load_extension(MODEL_LOADERS, name, _BUILT_IN)
    if not (isinstance(cls, type) and issubclass(cls, ModelLoader)):
        raise StartupError(
            f"the loader of format {name!r} is {cls!r}; it must subclass graftlm.contracts.checkpoint.ModelLoader"
        )
    with calling_extension(MODEL_LOADERS, name, "ModelLoader.__init__"):
        loader: ModelLoader = cls()
    return loader
