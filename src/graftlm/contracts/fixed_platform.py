"""Keeps the decided platform as it is: only its own code may set or delete an attribute of it.

Reading costs nothing. It does not decide on a platform; the plugin host of the process tells which one it is.
"""

from __future__ import annotations

import functools
import sys
import weakref
from abc import ABCMeta
from collections.abc import Iterator
from types import FrameType
from typing import Any

from graftlm.contracts.errors import StartupError
from graftlm.plugins import find_host
from graftlm.plugins.blame import current_call
from graftlm.plugins.registrar import PROGRAM, distribution_of

#: The point whose plugins bring platforms; what their own code sets before a platform is decided is their business.
_PLATFORM_POINT = "platform_plugins"
#: What Python itself writes into a class after its creation.
_PYTHONS_OWN = frozenset({"__annotations__", "__annotations_cache__", "__abstractmethods__", "_abc_impl"})


class PlatformFixed(StartupError):
    """Somebody tried to change the decided platform: `who`, what it `does`, and `platform`, the class."""

    def __init__(self, *, who: str, does: str, platform: type | None = None) -> None:
        base = f"a subclass of {platform.__name__}" if platform is not None else "a Platform class"
        super().__init__(
            f"the platform cannot be changed: {who} {does}, and it is decided once, by detectors and --platform; "
            f"write a platform plugin, {base} with a detector under graftlm.platform_plugins"
        )


#: What a platform's own code has set since it was decided, in a class or in an object of it.
_own_writes: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()
#: What plugins did to platform classes before one was decided, as a child's may: class -> name -> who and what.
_early_writes: weakref.WeakKeyDictionary[type, dict[str, tuple[str, str]]] = weakref.WeakKeyDictionary()


def _admit(target: Any, cls: type, name: str, verb: str) -> None:
    """Raise PlatformFixed unless `target` is not (part of) the decided platform, or its own code is at work."""
    if name in _PYTHONS_OWN:
        return
    host = find_host()
    decided = host.platform if host is not None else None
    is_decided = decided is not None and (target is decided or target in type(decided).__mro__)
    frame = sys._getframe(2)
    if _is_own_code(frame, type(decided) if is_decided else cls):
        if is_decided:
            _own_writes.setdefault(cls, set()).add(name)
        return
    does = f"{verb} {name!r} of {cls.__module__}:{cls.__qualname__}"
    if is_decided:
        raise PlatformFixed(who=at_work(frame.f_globals.get("__name__", "")), does=does, platform=type(decided))
    call = current_call()
    plugin = call.known() if call is not None else None
    if isinstance(target, type) and plugin is not None and plugin.point != _PLATFORM_POINT:
        _early_writes.setdefault(target, {})[name] = (at_work(), does)


def refuse_early_writes(platform: object) -> None:
    """Raise PlatformFixed if a plugin changed a class of `platform` before this process had decided on it."""
    for cls in type(platform).__mro__:
        for who, does in _early_writes.pop(cls, {}).values():
            raise PlatformFixed(who=who, does=does, platform=type(platform))


def at_work(module: str = "") -> str:
    """Name the plugin that is called now, else the owner of `module`."""
    call = current_call()
    if call is not None:
        plugin = call.known()
        return f"plugin {plugin.description if plugin is not None else repr(call.label)}"
    owner = distribution_of(module)
    return "this program" if owner == PROGRAM else owner


def _is_own_code(frame: FrameType | None, platform: type) -> bool:
    """Tell whether a method of `platform` is on the stack, or the import of a module of its own package."""
    methods = [(c.__module__, f"{c.__qualname__}.") for c in platform.__mro__ if c is not object]
    while frame is not None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name == "<module>":
            return bool(module.partition(".")[0] == platform.__module__.partition(".")[0])
        # A platform's own __setattr__ stands between it and whoever writes.
        if code.co_name not in ("__setattr__", "__delattr__") and any(
            module == m and code.co_qualname.startswith(q) for m, q in methods
        ):
            return True
        frame = frame.f_back
    return False


class PlatformType(ABCMeta):
    """The metaclass of platforms: the classes of a decided one take attributes from their own code only."""

    def __setattr__(cls, name: str, value: Any) -> None:
        _admit(cls, cls, name, "sets")
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        _admit(cls, cls, name, "deletes")
        super().__delattr__(name)


class FixedOnceDecided(metaclass=PlatformType):
    """What is a platform once it is decided: PlatformFixed for whoever sets its attributes from outside."""

    def __setattr__(self, name: str, value: Any) -> None:
        _admit(self, type(self), name, "sets")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _admit(self, type(self), name, "deletes")
        super().__delattr__(name)


class Picture:
    """The attributes of a decided platform and its classes, to find out who changed them behind the guards."""

    def __init__(self, platform: object) -> None:
        self._platform = platform
        self._owners = [platform, *(c for c in type(platform).__mro__ if c is not object)]
        self._before = [dict(vars(owner)) for owner in self._owners]

    def check(self) -> None:
        """Put back what others than the platform changed, and raise PlatformFixed for it."""
        changed = []
        for owner, before in zip(self._owners, self._before, strict=True):
            for name in sorted(self._changes(owner, before)):
                _put_back(owner, name, before)
                changed.append(f"{name!r} of {_place(owner)}")
        if changed:
            does = f"changed {' and '.join(changed)}"
            raise PlatformFixed(who=at_work(), does=does, platform=type(self._platform))

    def _changes(self, owner: Any, before: dict[str, Any]) -> Iterator[str]:
        own = _own_writes.get(owner if isinstance(owner, type) else type(owner), set())
        now = vars(owner)
        for name in before.keys() | now.keys():
            if name in own or name in _PYTHONS_OWN or (name in before and before[name] is now.get(name, before)):
                continue
            # A cached property writes into the object without asking.
            if owner is self._platform and isinstance(getattr(type(owner), name, None), functools.cached_property):
                continue
            yield name


def _place(owner: Any) -> str:
    cls = owner if isinstance(owner, type) else type(owner)
    return f"{cls.__module__}:{cls.__qualname__}"


def _put_back(owner: Any, name: str, before: dict[str, Any]) -> None:
    """Undo a change without asking the guards, whose point it is to refuse this too."""
    if not isinstance(owner, type):
        vars(owner).pop(name, None)
        vars(owner).update({name: before[name]} if name in before else {})
    elif name in before:
        type.__setattr__(owner, name, before[name])
    else:
        type.__delattr__(owner, name)
