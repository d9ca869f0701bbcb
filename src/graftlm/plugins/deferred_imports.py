"""Leaves parts of a library for later that a process of ours would import with it and never use.

Whoever touches one of them, or imports any more of the library, gets all, in the order in which the library asked
for them; and so does plugin code, before its first module is imported: it never meets half a library. Which parts
of which library is the caller's to say. What is deferred of Python's own library is loaded alone by a touch.

Where the library takes a function from such a part while it is imported, it may be given a stand-in, which loads
everything when it is called; the function itself takes its place whenever everything is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from graftlm.plugins.import_machinery import find_behind, import_waits_for
from graftlm.plugins.plugin import BUILT_IN_PACKAGES

logger = logging.getLogger(__name__)

#: Longer than any part takes.
_LIMIT_S = 60.0
_LOOK_S = 0.01

_lock = threading.RLock()
_waiting: dict[str, _DeferredModule] = {}
_loading: dict[str, int] = {}
"""Modules that are being loaded now, and by which thread."""
_lent: Mapping[str, Collection[str]] = {}
_stand_ins: dict[tuple[str, str], _StandIn] = {}


@contextlib.contextmanager
def deferring(
    names: Collection[str],
    *,
    library: str,
    beside: Collection[str],
    lent: Mapping[str, Collection[str]] | None = None,
) -> Iterator[None]:
    """Defer the modules of these names, when an import of `library` inside asks for them.

    `beside` are the other top-level packages that it may import: whatever else comes in is somebody's code, and
    finds everything loaded. `lent` names functions of deferred modules for which `library` gets stand-ins.
    """
    global _lent
    _lent = lent or {}
    finder = _Finder(frozenset(names), library, frozenset({library, *beside}) | sys.stdlib_module_names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.is_deferring = False
        if not _waiting:
            sys.meta_path.remove(finder)


def deferred() -> list[str]:
    """Name the modules that wait to be touched."""
    return list(_waiting)


def import_deferred(reason: str) -> None:
    """Load what was deferred; at no cost if nothing was. Raises what a module raises, as its import would have."""
    if (_waiting or _loading) and _takes_lock(reason):
        try:
            if _waiting:
                logger.debug("importing what was deferred for %s: %s", reason, ", ".join(_waiting))
            while _waiting:
                _load(next(iter(_waiting.values())))
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder) or f.is_deferring]
        finally:
            _lock.release()


def _import_alone(module: _DeferredModule, reason: str) -> None:
    if _takes_lock(reason):
        try:
            if module.__dict__["__name__"] in _waiting:
                _load(module)
        finally:
            _lock.release()


def _takes_lock(reason: str) -> bool:
    """False where two threads want what the other imports: as always then, some modules are met half imported."""
    me = threading.get_ident()
    until = time.monotonic() + _LIMIT_S
    while not _lock.acquire(timeout=_LOOK_S):
        if any(import_waits_for(me, of=thread) for thread in set(_loading.values()) - {me}):
            return False
        if time.monotonic() > until:
            raise ImportError(
                f"{reason}: another thread has been importing {', '.join(_loading)} for {_LIMIT_S:g} s"
            )
    return True


def before_plugin_code(module: str) -> None:
    """Call before `module` is imported: the rest is loaded if it is not the engine's own."""
    if module.partition(".")[0] not in BUILT_IN_PACKAGES:
        import_deferred(module)


class _DeferredModule(ModuleType):
    """A module whose code has not run: it has the attributes of its import, and the first other one runs it.

    What merely looks through all modules, as `inspect` does for their files, touches nothing.
    """

    def __getattr__(self, name: str) -> Any:
        key = self.__dict__["__name__"]
        if name == "__path__":  # what a `from` import asks first; a package has it from its import on
            raise AttributeError(f"module {key!r} has no attribute {name!r}")
        if _loading.get(key) == threading.get_ident():  # as of any module that is half imported
            raise AttributeError(f"partially initialized module {key!r} has no attribute {name!r}")
        if name in _lent.get(key, ()) and key in _waiting:
            return _lend(key, name, sys._getframe(1).f_globals)
        if key.partition(".")[0] in sys.stdlib_module_names:
            _import_alone(self, f"{key}.{name}")  # others of Python's may be importing it, and wanted by the rest
        else:
            import_deferred(f"{key}.{name}")
        if key in _waiting:  # whoever loads the rest waits for this thread
            _load(self)
        if key in _loading:
            raise AttributeError(f"partially initialized module {key!r} has no attribute {name!r}")
        return getattr(self, name)


class _StandIn:
    """A function that loads the real one when it is called, and the namespaces that have taken it."""

    def __init__(self, module: str, name: str) -> None:
        def call(*arguments: Any, **options: Any) -> Any:
            import_deferred(f"{module}.{name}")
            return getattr(importlib.import_module(module), name)(*arguments, **options)

        call.__name__ = call.__qualname__ = name
        call.__module__ = module
        self.function: Callable[..., Any] = call
        self.takers: list[dict[str, Any]] = []

    def give_way(self, real: Any) -> None:
        for namespace in self.takers:  # copied: another thread may add to it meanwhile
            namespace.update({key: real for key, value in tuple(namespace.items()) if value is self.function})


def _lend(module: str, name: str, taker: dict[str, Any]) -> Callable[..., Any]:
    stand_in = _stand_ins.setdefault((module, name), _StandIn(module, name))
    stand_in.takers.append(taker)
    return stand_in.function


def _load(module: _DeferredModule) -> None:
    facts = module.__dict__
    name: str = facts["__name__"]
    _loading[name] = threading.get_ident()
    del _waiting[name]
    try:
        facts["__loader__"].exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        del _loading[name]
        object.__setattr__(module, "__class__", ModuleType)
    for key in [key for key in _stand_ins if key[0] == name]:
        _stand_ins.pop(key).give_way(facts[key[1]])


class _Finder:
    """The first on `sys.meta_path`, from the library's import on until everything is loaded."""

    def __init__(self, names: frozenset[str], library: str, known: frozenset[str]) -> None:
        self.is_deferring = True
        self._names = names
        self._library = library
        self._known = known

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if self._is_touch(name):
            spec = find_behind(self, name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _AfterTheRest(spec.loader)
                return spec
            if "." not in name:
                return None
            import_deferred(name)  # which may make it, without a file of its own
            return _spec_of_loaded(name)
        if not self.is_deferring or name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Postponed(spec.loader)  # type: ignore[assignment]
        return spec

    def _is_touch(self, name: str) -> bool:
        top, _, rest = name.partition(".")
        if rest and name.rpartition(".")[0] in _waiting:
            return True
        if self.is_deferring:
            return top not in self._known
        return top == self._library and threading.get_ident() not in _loading.values()


class _AfterTheRest:
    """Loads what was deferred before its module is made.

    Not when it is looked for: Python lets one thread at a time look, and whoever imports anything would wait for
    all of it, even the thread that this one waits for.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        import_deferred(spec.name)
        module = sys.modules.get(spec.name)  # imported by the rest meanwhile: not once more
        loader: Any = self._loader if module is None else _Loaded(module)
        spec.loader = loader
        return loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)


def _spec_of_loaded(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return how to import a module that is there meanwhile: as it is, not once more.

    importlib looks whether it is, and then goes by the module's own `__spec__`: for a moment, that is this one.
    """
    module = sys.modules.get(name)
    if module is None:
        return None
    spec = importlib.machinery.ModuleSpec(name, _Loaded(module))  # type: ignore[arg-type]
    module.__spec__ = spec
    return spec


class _Loaded:
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


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
        module.__class__ = _DeferredModule
        assert isinstance(module, _DeferredModule)
        _waiting[spec.name] = module
