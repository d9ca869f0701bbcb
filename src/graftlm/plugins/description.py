"""Describes plan and plugins over all processes, as GET /plugins answers and `graftlm plugins` prints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import GROUP_PREFIX
from graftlm.plugins.process_host import ProcessHost

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery

#: The worst news wins where processes differ.
_RANK = ("failed", "active", "idle")


def describe(host: ProcessHost) -> dict[str, Any]:
    """Build {"plan": …, "plugins": […]}; states are active, idle, failed, refused and disabled."""
    plan = host.plan
    processes = {host.process: {"roles": sorted(host.roles), "fingerprint": plan.fingerprint, "pid": os.getpid()}}
    for child in host.children.values():
        processes[child.process] = {"roles": child.roles, "fingerprint": child.fingerprint, "pid": child.pid}
    return {
        "plan": {
            "fingerprint": plan.fingerprint,
            "api_version": plan.api_version,
            "platform": msgspec.to_builtins(plan.platform),
            "distributions": msgspec.to_builtins(plan.distributions),
            "order": [plugin.identity for plugin in plan.entries],
            "settings": plan.settings,
            "replays": msgspec.to_builtins(plan.replays),
            "shadows": msgspec.to_builtins(host.discovery.shadows) if host.discovery else [],
            "processes": processes,
        },
        "plugins": [_row(host, *known) for known in _known(host)]
        + (slips(host.discovery) if host.discovery else []),
    }


def slips(discovery: Discovery) -> list[dict[str, Any]]:
    """Return a row for each entry point in a group that no extension point has: refused, with the nearest name."""
    return [
        {
            "point": unknown.group.removeprefix(GROUP_PREFIX),
            "name": name,
            "distribution": unknown.distribution,
            "version": unknown.version,
            "target": value,
            "state": "refused",
            "reason": unknown.reason,
            "processes": {},
            "registrations": [],
            "ms": 0.0,
            "notes": [],
        }
        for unknown in discovery.unknown_groups
        for name, value in unknown.entries
    ]


def _known(host: ProcessHost) -> list[tuple[Plugin, str, str]]:
    if host.decisions:
        return [(d.plugin, d.state, d.reason) for d in host.decisions]
    return [(plugin, "on", "planned") for plugin in host.enabled_plugins]


def _row(host: ProcessHost, plugin: Plugin, state: str, reason: str) -> dict[str, Any]:
    by_process = {}
    ms = 0.0
    here = host.outcomes.get(plugin.identity)
    reports = {host.process: (here.state, here.reason, here.ms) if here else None}
    reports |= {c.process: c.outcomes.get(plugin.identity) for c in host.children.values()}
    roles = {host.process: set(map(str, host.roles))} | {c.process: set(c.roles) for c in host.children.values()}
    for process, outcome in reports.items():
        if outcome is not None:
            by_process[process], ms = outcome[0], ms + outcome[2]
            if outcome[0] == "failed" or (outcome[1] and state == "on" and reason in ("installed", "built in")):
                reason = outcome[1]
        elif state == "on" and roles[process] & set(plugin.roles):
            by_process[process] = "idle"
    if state == "on":
        state = next((s for s in _RANK if s in by_process.values()), "idle")
        if state == "idle" and reason in ("installed", "built in"):
            elsewhere = ", ".join(sorted(set(plugin.roles) - set().union(*roles.values())))
            reason += "; not needed so far" if not elsewhere or by_process else f"; runs in: {elsewhere}"
    return {
        "point": plugin.point,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.value,
        "state": state,
        "reason": reason,
        "processes": by_process,
        "registrations": _registrations(host, plugin),
        "ms": round(ms, 2),
        "notes": list(host.notes.get(plugin.identity, ())),
    }


def _registrations(host: ProcessHost, plugin: Plugin) -> list[str]:
    events = list(host.ledger.events) + [e for c in host.children.values() for e in c.events]
    lines = {
        f"{e.facts['registry']}: {e.facts['key']} -> {e.facts['value']}"
        for e in events
        if e.event == "registered" and e.plugin == plugin.label
    }
    return sorted(lines)
