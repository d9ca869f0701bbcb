"""The plugins a process knows of: which there are, which are enabled, which a name means; imports none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.plugins.errors import AmbiguousPlugin, UnknownPlugin
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import ExtensionPoint

if TYPE_CHECKING:
    from graftlm.plugins.selection import Decision


class KnownPlugins:
    """The decisions of a front end, or the entries of the plan that a child got."""

    def __init__(self, decisions: Sequence[Decision], planned: Sequence[Plugin]) -> None:
        self.decisions = tuple(decisions)
        self.enabled = tuple(planned) if planned else tuple(d.plugin for d in decisions if d.enabled)

    @property
    def all(self) -> tuple[Plugin, ...]:
        """Every plugin this process heard of, enabled or not."""
        return tuple(d.plugin for d in self.decisions) or self.enabled

    def of(self, point: ExtensionPoint[Any] | str) -> list[Plugin]:
        """Return the enabled plugins of a point, in order."""
        name = point if isinstance(point, str) else point.name
        return [plugin for plugin in self.enabled if plugin.point == name]

    def available(self, point: ExtensionPoint[Any] | str) -> list[str]:
        names = [plugin.name for plugin in self.of(point)]
        return sorted(p.name if names.count(p.name) == 1 else p.label for p in self.of(point))

    def find(self, point: ExtensionPoint[Any] | str, name: str) -> Plugin:
        found = [plugin for plugin in self.of(point) if plugin.answers_to(name)]
        where = point if isinstance(point, str) else point.name
        if not found:
            left_out = [d for d in self.decisions if d.plugin.point == where and d.plugin.answers_to(name)]
            hint = f"{left_out[0].plugin.label} is {left_out[0].state}: {left_out[0].reason}." if left_out else ""
            raise UnknownPlugin(name, where=where, known=self.available(point), hint=hint)
        if len(found) > 1:
            raise AmbiguousPlugin(name, where=where, candidates=[p.label for p in found])
        return found[0]

    def enable(self, plugin: Plugin, *, reason: str) -> Plugin:
        """Take in a plugin that the selection left out, because a later flag names it."""
        named = msgspec.structs.replace(plugin, named=True)
        self.decisions = tuple(
            msgspec.structs.replace(d, plugin=named, state="on", reason=reason)
            if d.plugin.identity == plugin.identity
            else d
            for d in self.decisions
        )
        self.enabled = tuple(d.plugin for d in self.decisions if d.enabled)
        return named
