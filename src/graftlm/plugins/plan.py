"""The plan: which plugins run where and in which order; decides nothing, imports nothing.

The front end makes it once; children get it as bytes before anything else and never decide again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import API_VERSION
from graftlm.plugins.replay import Replay


class PlatformChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The platform that was chosen, who provides it, and why."""

    name: str
    distribution: str
    version: str
    class_path: str
    reason: str
    built_in: bool = False

    @property
    def label(self) -> str:
        return f"{self.distribution}:{self.name}"


class DistributionFacts(msgspec.Struct, frozen=True):
    """Which files a distribution's plugins come from: its version and a hash over its files."""

    name: str
    version: str
    files: str


class PluginPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The immutable decision. `entries` are the enabled plugins in the order in which they run."""

    api_version: str = API_VERSION
    entries: tuple[Plugin, ...] = ()
    distributions: tuple[DistributionFacts, ...] = ()
    platform: PlatformChoice | None = None
    settings: dict[str, dict[str, Any]] = {}
    replays: tuple[Replay, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash over all of it; part of the key of every compiled or captured artefact."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> PluginPlan:
        return msgspec.msgpack.decode(data, type=cls)

    def of(self, point: str) -> list[Plugin]:
        """Return the enabled plugins of a point, in order."""
        return [plugin for plugin in self.entries if plugin.point == point]

    def difference(self, other: PluginPlan) -> list[str]:
        """Say entry by entry how `other` differs."""
        lines = _compare("plugin", _by(self.entries, "identity"), _by(other.entries, "identity"))
        lines += _compare("distribution", _by(self.distributions, "name"), _by(other.distributions, "name"))
        for field in ("api_version", "platform", "settings", "replays"):
            if getattr(self, field) != getattr(other, field):
                lines.append(f"{field}: {getattr(self, field)!r} here, {getattr(other, field)!r} there")
        return lines


def _by(items: Iterable[Any], attribute: str) -> dict[str, Any]:
    return {getattr(item, attribute): item for item in items}


def _compare(what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    lines = [f"{what} {name}: only here" for name in ours.keys() - theirs.keys()]
    lines += [f"{what} {name}: only there" for name in theirs.keys() - ours.keys()]
    lines += [
        f"{what} {n}: {ours[n]!r} here, {theirs[n]!r} there"
        for n in ours.keys() & theirs.keys()
        if ours[n] != theirs[n]
    ]
    return sorted(lines)
