"""The model source of paths on this machine: a Hugging Face directory or a .gguf file.

It does not read what it finds.
"""

from __future__ import annotations

from pathlib import Path

from graftlm.contracts.checkpoint import ModelSource
from graftlm.models.sources.errors import ModelNotFound, NoRevisions
from graftlm.plugins.spelling import hidden_last, nearest_names

_CURE = "give 'demo', a Hugging Face directory, a .gguf file or a hub id such as org/name"


class LocalSource(ModelSource):
    """Takes what exists, and what can only have been meant as a path."""

    scheme = "local"

    def claims(self, model: str) -> bool:
        in_a_repository = model.count("/") >= 2  # org/name/FILE.gguf is the hub's, unless it exists here
        meant_as_path = model.startswith(("/", "./", "../", "~")) or not model
        return meant_as_path or (model.endswith(".gguf") and not in_a_repository) or _exists(Path(model))

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        path = Path(model.removeprefix(f"{self.scheme}://")).expanduser()
        if revision is not None:
            raise NoRevisions(model, revision)
        if not model or not _exists(path):
            raise ModelNotFound(model, problem=_what_is_there(path), cure=_CURE)
        path = path.resolve()
        if path.is_file() or (path / "config.json").is_file():
            return path
        ggufs = sorted(path.glob("*.gguf"))
        match ggufs:
            case [only]:
                return only
            case [first, *_]:
                names = ", ".join(file.name for file in ggufs[:6])
                raise ModelNotFound(
                    model, problem=f"the directory holds {names}", cure=f"choose one, such as {first}"
                )
        return path  # a plugin's loader may know this form; else the loaders say what is missing


def _exists(path: Path) -> bool:
    """Tell whether it is there; what is too long for a name, or may not be looked at, is not."""
    try:
        return path.exists()
    except OSError:
        return False


def _what_is_there(path: Path) -> str:
    """Say how far the path goes, and which names there are near to the missing one."""
    folder = path.parent
    while not _exists(folder):
        folder = folder.parent
    if folder != path.parent:
        return f"the directory {str(path.parent)!r} does not exist (but {str(folder)!r} does)"
    try:
        names = sorted((entry.name for entry in folder.iterdir()), key=hidden_last)
    except OSError as error:
        return f"{str(folder)!r} cannot be read ({error.strerror})"
    near = nearest_names(path.name, names, cutoff=0.4)
    models = [name for name in names if name.endswith(".gguf")]
    shown = near or models[:3] or names[:3]
    return f"no such file or directory (near it: {', '.join(shown) or 'nothing'})"
