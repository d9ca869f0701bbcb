"""Turns a class path into the object it names; does not know what the object is for."""

from __future__ import annotations

import importlib
import types
from typing import Any

from graftlm.plugins.deferred_imports import before_plugin_code
from graftlm.plugins.errors import UnresolvedPath
from graftlm.plugins.fresh_sources import beware_of_fresh_sources
from graftlm.plugins.spelling import kind_of


def split_path(path: str, *, what: str = "class path") -> tuple[str, str]:
    """Split "module:Class" or "module.Class" into module and attribute, without importing anything."""
    if not isinstance(path, str):
        raise UnresolvedPath(repr(path), what=what, problem=f"it is {kind_of(path)}, not a string")
    text = path.partition("[")[0].strip()
    module, separator, attribute = text.partition(":")
    if not separator:
        module, separator, attribute = text.rpartition(".")
    parts = [*module.split("."), *attribute.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        raise UnresolvedPath(path, what=what, problem="it does not name a module and something in it")
    return module, attribute


def resolve_class_path(path: str, *, what: str = "class path") -> Any:
    """Import and return what `path` names; `what` is the flag or field to blame.

    Whatever the module itself raises while it is imported passes through; a module or attribute that does not
    exist is an UnresolvedPath.
    """
    module_name, attribute = split_path(path, what=what)
    module = _import(module_name, path=path, what=what)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UnresolvedPath(path, what=what, problem=f"{module_name} has no {attribute}") from None
    return found


def _import(name: str, *, path: str, what: str) -> types.ModuleType:
    beware_of_fresh_sources(name)
    before_plugin_code(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only when the path itself is wrong: a module that exists but lacks one of its own imports says so itself.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UnresolvedPath(path, what=what, problem=f"there is no module {error.name}") from error
        raise


def path_of(value: Any) -> str | None:
    """Return "module:qualname" if another process could import `value` under it, else None."""
    if isinstance(value, str):
        return value
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualname or module == "__main__" or "<" in qualname:
        return None
    return f"{module}:{qualname}"
