"""Decides which plugins take part, by one set of rules for all points; imports and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from graftlm.plugins.errors import (
    AmbiguousPlugin,
    DuplicatePlugin,
    PluginRefused,
    SelectionConflict,
    UnknownPlugin,
)
from graftlm.plugins.order import in_order
from graftlm.plugins.plugin import ENGINE, Plugin, normalized

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery

#: The reason of a plugin that an exact list does not name.
LEFT_OUT = "--plugins leaves it out"


class Selection(msgspec.Struct, kw_only=True):
    """What the user said: exactly these (`plugins`), one more, one less, or none at all.

    Entries are NAME, distribution:NAME, or either narrowed as point=NAME; blanks around them do not count. What is
    left out may be a whole distribution, too.
    """

    plugins: Sequence[str] | None = None
    enable_plugin: Sequence[str] = ()
    disable_plugin: Sequence[str] = ()
    no_plugins: bool = False


class Decision(msgspec.Struct, frozen=True):
    """What becomes of one found plugin: state "on", "disabled" or "refused", and why."""

    plugin: Plugin
    state: str
    reason: str

    @property
    def enabled(self) -> bool:
        return self.state == "on"


def select(discovery: Discovery, selection: Selection) -> list[Decision]:
    """Decide on every found plugin, in the order in which they run.

    Raises UnknownPlugin with the nearest names, AmbiguousPlugin, SelectionConflict, DuplicatePlugin, PluginCycle,
    and PluginRefused where the user named a plugin that cannot be imported.
    """
    exact = None if selection.plugins is None else _Names("--plugins", selection.plugins, discovery)
    more = _Names("--enable-plugin", selection.enable_plugin, discovery)
    less = _Names("--disable-plugin", selection.disable_plugin, discovery, takes_distributions=True)
    if selection.no_plugins and exact is not None and exact.matched:
        raise SelectionConflict("--plugins and --no-plugins were both given", cure="give one of them")
    asked = more.matched | (exact.matched if exact is not None else set())
    for plugin in discovery.plugins:
        if plugin.identity in less.matched & asked:
            raise SelectionConflict(
                f"{plugin.label} is both enabled and disabled", cure="leave it out of one of the flags"
            )
    providers: dict[str, set[str]] = {}
    for plugin in discovery.plugins:
        providers.setdefault(plugin.name, set()).add(plugin.distribution)
    decisions = []
    for plugin in discovery.plugins:
        named = plugin.identity in asked
        shortest = plugin.name if len(providers[plugin.name]) == 1 else plugin.label
        state, reason = _state(plugin, selection, exact, named=named, less=less, shortest=shortest)
        if state == "on" and plugin.refused:
            if named:
                raise PluginRefused(plugin.description, reason=plugin.refused)
            state, reason = "refused", plugin.refused
        decisions.append(Decision(msgspec.structs.replace(plugin, named=named), state, reason))
    decisions = _settle_duplicates(decisions)
    rank = {p.identity: i for i, p in enumerate(in_order([d.plugin for d in decisions if d.enabled]))}
    return sorted(decisions, key=lambda d: rank.get(d.plugin.identity, len(rank)))


def _state(
    plugin: Plugin, selection: Selection, exact: _Names | None, *, named: bool, less: _Names, shortest: str
) -> tuple[str, str]:
    if plugin.identity in less.matched:
        return "disabled", "--disable-plugin names it"
    if named:
        return "on", "named"
    if plugin.opt_in:
        return "disabled", f"{plugin.point} take part only when named: --enable-plugin {shortest}"
    if plugin.built_in:
        return "on", "built in"
    if selection.no_plugins:
        return "disabled", "--no-plugins"
    if exact is not None:
        return "disabled", LEFT_OUT
    return "on", "installed"


class _Names:
    """One flag's list of names, each matched against what was found."""

    def __init__(
        self, flag: str, names: Sequence[str], discovery: Discovery, *, takes_distributions: bool = False
    ) -> None:
        self.matched: set[str] = set()
        self._takes_distributions = takes_distributions
        for entry in names:
            for text in entry.split(","):
                if text.strip():
                    self._match(flag, text.strip(), discovery)

    def _match(self, flag: str, text: str, discovery: Discovery) -> None:
        point, separator, name = text.partition("=")
        point, name = (point.strip(), name.strip()) if separator else ("", text)
        prefix = f"{point}=" if point else ""
        here = [p for p in discovery.plugins if point in ("", p.point)]
        found = [p for p in here if p.answers_to(name)]
        # Of the engine itself there is always something left that a start needs.
        whole = [p for p in here if p.distribution != ENGINE] if self._takes_distributions else []
        found = found or [p for p in whole if p.is_of(name)]
        if not found:
            known = [*_spellings(discovery, point), *(f"{prefix}{p.distribution}" for p in whole)]
            hint = _hint(name, discovery)
            if self._takes_distributions and normalized(name) == ENGINE:
                hint = f"{ENGINE} is the engine itself; leave out one plugin of it, as {ENGINE}:NAME."
            raise UnknownPlugin(text, where=flag, known=known, hint=hint)
        distributions = sorted({p.distribution for p in found})
        if len(distributions) > 1:
            raise AmbiguousPlugin(text, where=flag, candidates=[f"{prefix}{d}:{name}" for d in distributions])
        self.matched.update(p.identity for p in found)


def _spellings(discovery: Discovery, point: str) -> list[str]:
    here = [p for p in discovery.plugins if point in ("", p.point)] or list(discovery.plugins)
    if point:
        return [f"{p.point}={p.name}" for p in here]
    return [p.name for p in here] + [p.label for p in here if not p.built_in]


def _hint(name: str, discovery: Discovery) -> str:
    """Say what may be why nothing is called `name`: first of all an unknown group with that very name in it."""
    if elsewhere := next((f for f in discovery.foreign if name in (*f.names, f.distribution)), None):
        return f"{elsewhere.reason}."
    meant = [s for s in discovery.unknown_groups if name in (entry for entry, _ in s.entries)]
    shadow = next((s for s in discovery.shadows if s.differs), None)
    if shadow is not None and not meant:
        return (
            f"{shadow.distribution} is installed twice; {shadow.used_location} is used, {shadow.location} is not."
        )
    slip = next(iter((*meant, *discovery.unknown_groups)), None)
    return f"{slip.distribution} has entry points in {slip.group!r}: {slip.reason}." if slip is not None else ""


def _settle_duplicates(decisions: list[Decision]) -> list[Decision]:
    """Let a plugin that declares it take another's key; any other second claim is an error."""
    claims: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        # One distribution may not use a label twice either: its plugins could not be told apart.
        name = decision.plugin.name if decision.plugin.key else decision.plugin.label
        if decision.enabled:
            claims.setdefault((decision.plugin.point, name), []).append(decision)
    lost: dict[str, str] = {}
    for (point, _), claimants in claims.items():
        if len(claimants) < 2:
            continue
        winners = [d for d in claimants if _takes_over(d, claimants)]
        if len(winners) != 1:
            names = [f"{d.plugin.distribution} {d.plugin.version} ({d.plugin.value})" for d in claimants]
            raise DuplicatePlugin(point, claimants[0].plugin.name, claimants=names)
        lost |= {
            d.plugin.identity: f"replaced by {winners[0].plugin.label}" for d in claimants if d is not winners[0]
        }
    return [
        msgspec.structs.replace(d, state="disabled", reason=lost[d.plugin.identity])
        if d.enabled and d.plugin.identity in lost
        else d
        for d in decisions
    ]


def _takes_over(decision: Decision, claimants: list[Decision]) -> bool:
    others = [d.plugin for d in claimants if d is not decision]
    return all(any(other.answers_to(name) for name in decision.plugin.replaces) for other in others)
