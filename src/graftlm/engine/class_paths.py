"""Tells whether `module:Class` exists, by reading files and importing nothing but the top package's place.

A worker class imports torch, so the front end must not import it to learn that its name is misspelt. What only
running code could tell (an extension module, a star import, a module `__getattr__`) counts as found.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from graftlm.config.errors import InvalidOption
from graftlm.plugins.spelling import nearest_names


def looks_like_class_path(text: str) -> bool:
    """Names have neither colon nor dot; class paths have one of them."""
    return ":" in text or "." in text


def check_class_path(flag: str, path: str) -> None:
    """Raise InvalidOption, naming what exists, unless `path` (module:Class or module.Class) can be found."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not name or not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise InvalidOption(flag, path, problem="it is no class path", cure="write it as module:Class")
    spec = _find_module(flag, path, module)
    bound = _bound_names(spec)
    first = name.split(".")[0]
    if bound is None or first in bound:
        return
    near = nearest_names(first, bound)
    cure = (
        f"did you mean {' or '.join(f'{module}:{n}' for n in near)}?"
        if near
        else f"it is looked for in {spec.origin}"
    )
    raise InvalidOption(flag, path, problem=f"the module {module} has no {first}", cure=cure)


def _find_module(flag: str, path: str, module: str) -> importlib.machinery.ModuleSpec:
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    found = top
    if spec is None:
        raise InvalidOption(
            flag, path, problem=f"no package {top!r} is installed", cure=f"install the plugin that brings {module}"
        )
    for part in rest:
        places = spec.submodule_search_locations
        inner = importlib.machinery.PathFinder.find_spec(f"{found}.{part}", places) if places is not None else None
        if inner is None:
            near = nearest_names(part, _submodules(places or ()))
            cure = f"did you mean {' or '.join(f'{found}.{n}' for n in near)}?" if near else "check the spelling"
            raise InvalidOption(flag, path, problem=f"the package {found} has no module {part!r}", cure=cure)
        spec, found = inner, f"{found}.{part}"
    return spec


def _submodules(places: Sequence[str]) -> list[str]:
    names = [entry.stem for place in places if Path(place).is_dir() for entry in Path(place).iterdir()]
    return sorted({name for name in names if name.isidentifier()})


def _bound_names(spec: importlib.machinery.ModuleSpec) -> set[str] | None:
    """Names that the module binds at its top level, or None where only running it could tell."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    return _names_of(tree.body)


def _names_of(body: Sequence[ast.stmt]) -> set[str] | None:
    names: set[str] = set()
    for statement in body:
        match statement:
            case ast.FunctionDef(name="__getattr__"):
                return None
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                if any(alias.name == "*" for alias in aliases):
                    return None
                names |= {alias.asname or alias.name.split(".")[0] for alias in aliases}
            case ast.Assign(targets=targets):
                names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                inner = _names_of(
                    [s for s in ast.walk(statement) if isinstance(s, ast.stmt) and s is not statement]
                )
                if inner is None:
                    return None
                names |= inner
    return names
