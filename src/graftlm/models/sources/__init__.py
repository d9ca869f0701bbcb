"""Model sources: turn what the user typed for MODEL into a path on this machine.

It does not know checkpoint formats.
"""

from __future__ import annotations

import logging
from pathlib import Path

from graftlm.contracts.checkpoint import ModelSource
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import MODEL_SOURCES
from graftlm.models.checkpoints.errors import nearest
from graftlm.models.extensions import calling_extension, load_extension, provided_names
from graftlm.models.sources.errors import ModelNotFound
from graftlm.plugins import record

__all__ = ["model_sources", "resolve_model"]

logger = logging.getLogger(__name__)

#: In the order in which they are asked.
_BUILT_IN = {
    "demo": "graftlm.models.sources.demo:DemoSource",
    "local": "graftlm.models.sources.local:LocalSource",
    "hf": "graftlm.models.sources.hub:HubSource",
}


def model_sources() -> list[str]:
    """Name the sources in the order in which they are asked: the engine's own, then those of plugins."""
    return provided_names(MODEL_SOURCES, _BUILT_IN)


def resolve_model(model: str, *, revision: str | None = None, progress: bool = True) -> Path:
    """Make the model present and return its directory or file.

    `scheme://…` asks the source of that name only. A plugin's source is imported when the engine's own decline.
    """
    name, source = _source_of(model)
    with calling_extension(MODEL_SOURCES, name, "ModelSource.fetch"):
        path = source.fetch(model, revision=revision, progress=progress)
    _check_spelling(model, path)
    record("model_resolved", model=model, source=name)
    logger.info("model resolved model=%s source=%s path=%s", model, name, path)
    return path


def _check_spelling(model: str, path: Path) -> None:
    """A path crosses processes and is shown to clients as UTF-8, which not every file name is."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ModelNotFound(
            model, problem=f"the name of {str(path)!r} is not UTF-8, which it must be", cure="rename it"
        ) from None


def _source_of(model: str) -> tuple[str, ModelSource]:
    names = model_sources()
    scheme, separator, _ = model.partition("://")
    if separator:
        if scheme not in names:
            raise ModelNotFound(
                model, problem=f"no model source is called {scheme!r}{nearest(scheme, names)}",
                cure=f"the sources are {', '.join(names)}; a plugin may bring more",
            )  # fmt: skip
        names = [scheme]
    for name in names:
        source = _load(name)
        if separator:
            return name, source
        with calling_extension(MODEL_SOURCES, name, "ModelSource.claims"):
            claims = source.claims(model)
        if claims:
            return name, source
    raise ModelNotFound(
        model,
        problem=f"it is no path here and no hub id{nearest(model, ['demo', *_entries_here()])}",
        cure="give 'demo', a Hugging Face directory, a .gguf file or a hub id such as org/name",
    )


def _load(name: str) -> ModelSource:
    cls = load_extension(MODEL_SOURCES, name, _BUILT_IN)
    if not (isinstance(cls, type) and issubclass(cls, ModelSource)):
        raise StartupError(
            f"the model source {name!r} is {cls!r}; it must subclass graftlm.contracts.checkpoint.ModelSource"
        )
    with calling_extension(MODEL_SOURCES, name, "ModelSource.__init__"):
        source: ModelSource = cls()
    return source


def _entries_here() -> list[str]:
    return [entry.name for entry in Path.cwd().iterdir()]
