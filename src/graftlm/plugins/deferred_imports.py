"""Leaves parts of a library for later that a process of ours would import with it and never use.

Whoever touches one of them gets all, in the order in which the library asked for them; and so does plugin code,
before its first module is imported: it never meets half a library. Which parts of which is the caller's to say.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import logging
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from types import ModuleType
from typing import Any

from graftlm.plugins.plugin import BUILT_IN_PACKAGES

logger = logging.getLogger(__name__)

_lock = threading.RLock()
_waiting: dict[str, _DeferredModule] = {}
_loading: dict[str, int] = {}
"""Modules that are being loaded now, and by which thread."""


@contextlib.contextmanager
def deferring(names: Collection[str], *, beside: Collection[str]) -> Iterator[None]:
    """Defer the modules of these names, when an import inside asks for them.

    `beside` are the top-level packages that the library may import: whatever else comes in is somebody's code, and
    finds everything loaded.
    """
    finder = _Finder(frozenset(names), frozenset(beside) | sys.stdlib_module_names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def deferred() -> list[str]:
    """Name the modules that wait to be touched."""
    return list(_waiting)


def import_deferred(reason: str) -> None:
    """Load what was deferred; at no cost if nothing was. Raises what a module raises, as its import would have."""
    if not _waiting:
        return
    with _lock:
        logger.debug("importing what was deferred for %s: %s", reason, ", ".join(_waiting))
        while _waiting:
            _load(next(iter(_waiting.values())))


def before_plugin_code(module: str) -> None:
    """Call before `module` is imported: the rest is loaded if it is not the engine's own."""
    if _waiting and module.partition(".")[0] not in BUILT_IN_PACKAGES:
        import_deferred(module)


class _DeferredModule(ModuleType):
    """A module whose code has not run: it has the attributes of its import, and the first other one runs it.

    It lacks `__path__` as well, which the import of a submodule asks for. What merely looks through all modules, as
    `inspect` does for their files, touches nothing.
    """

    def __getattr__(self, name: str) -> Any:
        key = self.__dict__["__name__"]
        if _loading.get(key) == threading.get_ident():  # as of any module that is half imported
            raise AttributeError(f"partially initialized module {key!r} has no attribute {name!r}")
        import_deferred(f"{key}.{name}")
        with _lock:  # another thread may be at it
            return getattr(self, name)


def _load(module: _DeferredModule) -> None:
    facts = module.__dict__
    name: str = facts["__name__"]
    _loading[name] = threading.get_ident()
    del _waiting[name]
    if facts["__spec__"].submodule_search_locations is not None:
        module.__path__ = facts["__spec__"].submodule_search_locations
    try:
        facts["__loader__"].exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        del _loading[name]
        object.__setattr__(module, "__class__", ModuleType)


class _Finder:
    """The first on `sys.meta_path`."""

    def __init__(self, names: frozenset[str], known: frozenset[str]) -> None:
        self._names = names
        self._known = known

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        foreign = name.partition(".")[0] not in self._known
        if not foreign and name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if foreign and spec is not None:
            import_deferred(name)
        elif spec is not None and spec.loader is not None:
            spec.loader = _Postponed(spec.loader)  # type: ignore[assignment]
        return spec


class _Postponed:
    """Makes the module as its loader does, and runs nothing."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        module.__dict__.pop("__path__", None)
        module.__class__ = _DeferredModule
        assert isinstance(module, _DeferredModule)
        _waiting[spec.name] = module
