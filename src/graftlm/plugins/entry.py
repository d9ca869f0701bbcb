"""One entry of a registry, and how keys and values are spelled and compared; knows no registry."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from graftlm.plugins.resolve import path_of

_sequence = itertools.count()


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """One key's value, who put it there, and in which way: engine, general, hook, import, program or replay."""

    key: Any
    value: Any
    owner: str
    via: str
    plugin: str | None = None
    module: str | None = None
    previous: Entry | None = None
    resolved: Any = None
    sequence: int = dataclasses.field(default_factory=lambda: next(_sequence))

    def again(self, *, via: str, plugin: str | None) -> Entry:
        """Return a new entry of the same registration, made now on behalf of `plugin`."""
        return Entry(self.key, self.value, self.owner, via, plugin, self.module)

    def below_plugins(self) -> Entry | None:
        """Return what the key held before any plugin touched it."""
        below = self.previous
        while below is not None and below.plugin is not None:
            below = below.previous
        return below


def key_text(key: Any) -> str:
    """Spell a key for people: a string as it is, a class as module.Class."""
    return key if isinstance(key, str) else f"{key.__module__}.{key.__qualname__}"


def value_text(value: Any) -> str:
    """Spell a value for people and for comparison between processes."""
    return path_of(value) or f"a {type(value).__module__}:{type(value).__qualname__}"


def same_value(held: Any, value: Any) -> bool:
    """A lazy path and the object it names are the same registration."""
    if held is value or (isinstance(held, str) and held == value):
        return True
    one_is_lazy = isinstance(held, str) != isinstance(value, str)
    return one_is_lazy and path_of(held) is not None and path_of(held) == path_of(value)
