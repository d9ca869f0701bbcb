"""PluggableLayer: a layer class that a plugin may replace by a subclass of its own, wherever a model builds it.

It does not know what the layer computes; `CustomOp` adds the choice of an implementation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch

from graftlm.contracts.points import CUSTOM_OPS
from graftlm.ops.build import find_build
from graftlm.ops.entry_points import available, find, load_if_sound
from graftlm.ops.replaceable import spellings
from graftlm.plugins import (
    DuplicateRegistration,
    Registry,
    UnresolvedPath,
    calling,
    record_counted,
    resolve_class_path,
)
from graftlm.plugins.registry import key_text
from graftlm.plugins.spelling import nearest

logger = logging.getLogger(__name__)

LayerT = TypeVar("LayerT", bound="type[PluggableLayer]")

#: class -> its replacement; `include_subclasses` adds an entry to the second registry as well.
replacements: Registry[type[PluggableLayer]] = Registry("custom_ops", kind="replacement of")
subclass_replacements: Registry[type[PluggableLayer]] = Registry(
    "custom_ops_with_subclasses", kind="replacement of subclasses of"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Construction:
    """What a model asked for where a replacement was built."""

    cls: type[PluggableLayer]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def build(self) -> PluggableLayer:
        """Build the class that was asked for, not its replacement."""
        with unreplaced():
            return self.cls(*self.args, **self.kwargs)


_unreplaced: ContextVar[bool] = ContextVar("graftlm_unreplaced", default=False)


@contextlib.contextmanager
def unreplaced() -> Iterator[None]:
    """Build every class as itself inside the block, whatever replaces it."""
    token = _unreplaced.set(True)
    try:
        yield
    finally:
        _unreplaced.reset(token)


class PluggableLayer(torch.nn.Module):
    """A layer that `register_oot` or an entry point of `graftlm.custom_ops` may replace.

    The key is the class itself: a subclass is another layer, unless the replacement asks for subclasses too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PluggableLayer:
        chosen = cls if _unreplaced.get() else replacement_of(cls)
        layer = super().__new__(chosen)
        if chosen is not cls:
            _note_swap(cls, chosen)
            # Past nn.Module's own attributes, which do not exist before its __init__.
            layer.__dict__["asked_for"] = Construction(cls, args, kwargs)
        # The result is an instance of `cls`, so Python goes on with the replacement's __init__.
        return layer

    @classmethod
    def register_oot(
        cls,
        replacement: LayerT | None = None,
        *,
        name: str | None = None,
        include_subclasses: bool = False,
        replace: bool = False,
    ) -> Any:
        """Build `replacement` wherever a model builds this class; usable as a decorator, with or without brackets.

        `name` replaces another class than the one it is called on: by path, or a layer's bare name.
        """

        def decorate(candidate: LayerT) -> LayerT:
            target = cls if name is None else _named_class(name)
            _check_replacement(target, candidate, what="register_oot")
            replacements.register(target, candidate, replace=replace)
            if include_subclasses:
                subclass_replacements.register(target, candidate, replace=replace)
            return candidate

        return decorate if replacement is None else decorate(replacement)


def replacement_of(cls: type[PluggableLayer]) -> type[PluggableLayer]:
    """Return the class that is built where `cls` is asked for: itself, its replacement, or that one's."""
    seen = cls
    while (found := _direct_replacement(seen)) is not None:
        seen = found
    return seen


def _direct_replacement(cls: type[PluggableLayer]) -> type[PluggableLayer] | None:
    registered = replacements.get(cls) if cls in replacements else None
    path = _published_path(cls)
    if path is not None:
        published = _published_replacement(cls, path)
        if registered is not None and published is not None and registered is not published:
            claimant = find(CUSTOM_OPS, path).label
            raise DuplicateRegistration(
                "replacement of", key_text(cls), holder=replacements.owner(cls), claimant=claimant
            )
        registered = registered or published
    if registered is not None:
        return registered
    for parent in cls.__mro__[1:]:
        if parent in subclass_replacements:
            replacement = subclass_replacements.get(parent)
            return None if issubclass(cls, replacement) else _mixed(replacement, cls)
    return None


def _published_path(cls: type[PluggableLayer]) -> str | None:
    """Return the entry point of graftlm.custom_ops that names `cls`, if there is one."""
    names = available(CUSTOM_OPS)
    return (
        next((path for path in spellings(cls.__module__, cls.__qualname__) if path in names), None)
        if names
        else None
    )


def _published_replacement(cls: type[PluggableLayer], path: str) -> type[PluggableLayer] | None:
    replacement = load_if_sound(CUSTOM_OPS, path)
    if replacement is None:
        return None
    with calling(find(CUSTOM_OPS, path), "replacement"):
        _check_replacement(cls, replacement, what=f"the entry point {path} of graftlm.custom_ops")
    return cast("type[PluggableLayer]", replacement)


_mixed_classes: dict[tuple[type, type], type[PluggableLayer]] = {}


def _mixed(replacement: type[PluggableLayer], cls: type[PluggableLayer]) -> type[PluggableLayer]:
    """Return a class that is both: the replacement's methods before those of the subclass `cls`."""
    key = (replacement, cls)
    if key not in _mixed_classes:
        body = {"__module__": replacement.__module__, "__doc__": replacement.__doc__}
        _mixed_classes[key] = type(f"{replacement.__name__}Of{cls.__name__}", key, body)
    return _mixed_classes[key]


def _check_replacement(target: type[PluggableLayer], candidate: Any, *, what: str) -> None:
    name = key_text(target)
    if target.__module__.startswith("graftlm.ops.") and target.__name__ in ("PluggableLayer", "CustomOp"):
        raise TypeError(f"{what}: {name} is no layer; call register_oot on the class to replace, or pass name=…")
    if not isinstance(candidate, type):
        raise TypeError(f"{what}: the replacement of {name} must be a class, not {candidate!r}")
    if candidate is target or not issubclass(candidate, target):
        raise TypeError(f"{what}: {key_text(candidate)} cannot replace {name}; it must be a subclass of it")
    own, replaced = getattr(candidate, "name", None), getattr(target, "name", None)
    if own != replaced:
        raise TypeError(
            f"{what}: {key_text(candidate)} has the op name {own!r} of its own; a replacement keeps {replaced!r}"
        )


def _named_class(name: str) -> type[PluggableLayer]:
    if "." in name or ":" in name:
        found = resolve_class_path(name, what="register_oot name")
    else:
        found = _built_in_layer(name)
    if not (isinstance(found, type) and issubclass(found, PluggableLayer)):
        raise TypeError(f"register_oot name={name!r} is {found!r}, which is no replaceable layer")
    return found


def _built_in_layer(name: str) -> Any:
    try:
        return resolve_class_path(f"graftlm.layers:{name}", what="register_oot name")
    except UnresolvedPath:
        known = {c.__name__: c for c in _layers() if c.__module__.startswith("graftlm.")}
        if name in known:
            return known[name]
        problem = f"no layer of the engine is called so; {nearest(name, known)}"
        raise UnresolvedPath(name, what="register_oot name", problem=problem) from None


def _layers(root: type[PluggableLayer] = PluggableLayer) -> Iterator[type[PluggableLayer]]:
    for cls in root.__subclasses__():
        yield cls
        yield from _layers(cls)


def _note_swap(cls: type[PluggableLayer], chosen: type[PluggableLayer]) -> None:
    logger.debug("Instantiating custom op: %s using %s", cls.__name__, chosen)
    pair = (key_text(cls), key_text(chosen))
    build = find_build()
    if build is None:
        record_counted("op_swapped", cls=pair[0], replacement=pair[1])
    else:
        build.swaps[pair] += 1
