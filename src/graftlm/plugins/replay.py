"""Registrations that other processes repeat: as text, and the list that this process is to repeat.

Knows no registry; a registry looks here before it is looked at, so that replaying imports nothing by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from graftlm.plugins.resolve import path_of


def _importable(value: Any, path: str) -> bool:
    """A class made inside a function may have the name of something importable and yet not be it."""
    module, _, attribute = path.partition(":")
    found: Any = sys.modules.get(module)
    if isinstance(value, str) or found is None:
        return True
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found is value


class Replay(msgspec.Struct, frozen=True):
    """A registration made by a platform hook, or by the program before the start, for every other process."""

    registry: str
    key: str
    key_is_path: bool
    value: str
    owner: str
    plugin: str | None = None

    def find_key(self) -> Any:
        """Return the key; None while it is a class whose module is not imported here, so that nobody has it."""
        if not self.key_is_path:
            return self.key
        module, _, attribute = self.key.partition(":")
        found: Any = sys.modules.get(module)
        for part in attribute.split("."):
            found = getattr(found, part, None)
        return found


_expected: list[Replay] = []


def expected() -> list[Replay]:
    """Return what registries of this process are to repeat, in order."""
    return _expected


def expect(replays: Iterable[Replay]) -> None:
    """Set what registries of this process, also those not yet imported, repeat before they are next looked at."""
    global _expected
    _expected = list(replays)


def as_replay(registry: str, key: Any, value: Any, *, owner: str, plugin: str | None) -> Replay | None:
    """Express a registration as text, or return None where another process could not import it."""
    value_path, key_path = path_of(value), path_of(key)
    if value_path is None or key_path is None or not ("." in value_path or ":" in value_path):
        return None
    if not (_importable(value, value_path) and _importable(key, key_path)):
        return None
    return Replay(registry, key_path, not isinstance(key, str), value_path, owner, plugin)
