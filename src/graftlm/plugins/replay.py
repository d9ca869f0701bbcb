"""Registrations that other processes repeat: as text, and the list that this process is to repeat.

Knows no registry; a registry looks here before it is looked at, so that replaying imports nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from graftlm.plugins.resolve import path_of


class Replay(msgspec.Struct, frozen=True):
    """A registration made by a platform hook, or by the program before the start, for every other process."""

    registry: str
    key: str
    key_is_path: bool
    value: str
    owner: str
    plugin: str | None = None


_expected: list[Replay] = []


def expected() -> list[Replay]:
    """Return what registries of this process are to repeat, in order."""
    return _expected


def expect(replays: Iterable[Replay]) -> None:
    """Set what registries of this process are to repeat."""
    global _expected
    _expected = list(replays)


def as_replay(registry: str, key: Any, value: Any, *, owner: str, plugin: str | None) -> Replay | None:
    """Express a registration as text, or return None where another process could not import it."""
    value_path, key_path = path_of(value), path_of(key)
    if value_path is None or key_path is None or not ("." in value_path or ":" in value_path):
        return None
    return Replay(registry, key_path, not isinstance(key, str), value_path, owner, plugin)
