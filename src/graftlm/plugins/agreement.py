"""Compares what a child process really has with what its parent decided; does not repair anything."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from graftlm.plugins.errors import PlanDiffers
from graftlm.plugins.plan import DistributionFacts
from graftlm.plugins.process_host import ProcessHost
from graftlm.plugins.report import Report


def report(host: ProcessHost) -> Report:
    """Build this process's report, with versions and file hashes as this process finds them."""
    from graftlm.plugins.fingerprint import distribution_facts

    return Report(
        process=host.process,
        roles=sorted(host.roles),
        pid=os.getpid(),
        fingerprint=host.plan.fingerprint,
        distributions=distribution_facts(host.enabled_plugins),
        general=general_registrations(host),
        outcomes={k: (o.state, o.reason, o.ms) for k, o in host.outcomes.items()},
        events=list(host.ledger.events),
    )


def general_registrations(host: ProcessHost) -> dict[str, list[str]]:
    """Return, for each general plugin that ran here, its state and its registrations, sorted."""
    found: dict[str, list[str]] = {}
    for plugin in host.plugins("general_plugins"):
        outcome = host.outcomes.get(plugin.identity)
        if outcome is None:
            continue
        lines = [
            f"registers {e.facts['registry']} {e.facts['key']} -> {e.facts['value']}"
            for e in host.ledger.of("registered", via="general")
            if e.plugin == plugin.label
        ]
        found[plugin.label] = sorted(lines) + ([f"failed: {outcome.reason}"] if outcome.state == "failed" else [])
    return found


def check(host: ProcessHost, child: Report) -> None:
    """Raise PlanDiffers unless the child has the same plan, files and shared registrations."""
    lines: list[str] = []
    if child.fingerprint != host.plan.fingerprint:
        lines.append(f"plan: {host.plan.fingerprint} in {host.process}, {child.fingerprint} in {child.process}")
    ours = {d.name: d for d in host.plan.distributions}
    theirs = {d.name: d for d in child.distributions}
    for name in sorted(ours.keys() | theirs.keys()):
        lines += _distribution(name, ours.get(name), theirs.get(name), there=child.process)
    lines += _different_registrations(
        general_registrations(host), child.general, here=host.process, there=child.process
    )
    if lines:
        raise PlanDiffers(child.process, differences=lines)


def check_against_parent(host: ProcessHost, general: dict[str, list[str]], *, parent: str) -> None:
    """Raise PlanDiffers unless this child's general plugins registered what its parent's did."""
    lines = _different_registrations(general, general_registrations(host), here=parent, there=host.process)
    if lines:
        raise PlanDiffers(host.process, differences=lines)


def _distribution(
    name: str, ours: DistributionFacts | None, theirs: DistributionFacts | None, *, there: str
) -> list[str]:
    if ours is None or theirs is None:
        return [f"distribution {name}: {'missing' if theirs is None else 'present only'} in {there}"]
    if ours.version != theirs.version:
        return [f"distribution {name}: version {ours.version} was planned, {there} has {theirs.version}"]
    if ours.files != theirs.files:
        hashes = f"{ours.files} was planned, {there} has {theirs.files}"
        return [f"distribution {name}: its files differ ({hashes})"]
    return []


def _different_registrations(
    ours: dict[str, list[str]], theirs: dict[str, list[str]], *, here: str, there: str
) -> list[str]:
    """Say what plugins that ran in both processes registered in one of them only."""
    both = sorted(ours.keys() & theirs.keys())
    return [
        line for label in both for line in _registrations(label, ours[label], theirs[label], here=here, there=there)
    ]


def _registrations(label: str, mine: list[str], child: list[str], *, here: str, there: str) -> list[str]:
    only_here = [f"plugin {label}: {line} in {here} only" for line in mine if line not in child]
    return only_here + [f"plugin {label}: {line} in {there} only" for line in child if line not in mine]


def merged_events(host: ProcessHost) -> list[dict[str, Any]]:
    """Return the events of this process and its children in the order of time."""
    sources = [(host.process, host.ledger.events)] + [(c.process, c.events) for c in host.children.values()]
    rows = [{"process": name, **msgspec.to_builtins(event)} for name, events in sources for event in events]
    return sorted(rows, key=lambda row: row["at"])
