"""Explains from what GET /plugins?events=true says, be it of a running server or of this process.

It asks nobody: what no ledger holds it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graftlm.cli.plugins.explanation import Candidate, Explanation, owner_of
from graftlm.cli.plugins.kinds import KINDS

Description = Mapping[str, Any]
Row = Mapping[str, Any]


def rows_of(description: Description, point: str) -> list[Row]:
    return [row for row in description["plugins"] if row["point"] == point]


def events_of(description: Description, *names: str, **facts: Any) -> list[dict[str, Any]]:
    """Return the events of these names whose facts include `facts`."""
    return [
        event
        for event in description.get("events", [])
        if event["event"] in names and facts.items() <= event.get("facts", {}).items()
    ]


def explain_platform(description: Description) -> Explanation:
    """Say which detector answered what, and which platform was taken."""
    choice = (description.get("plan") or {}).get("platform")
    answers = {e["plugin"]: e["facts"] for e in events_of(description, "detector_called")}
    candidates = []
    for row in rows_of(description, "platform_plugins"):
        asked = answers.get(f"{row['distribution']}:{row['name']}")
        won = choice is not None and (row["distribution"], row["name"]) == (choice["distribution"], choice["name"])
        state = "won" if won else _platform_state(row, asked)
        target, reason = (asked or {}).get("answer") or "", row["reason"]
        if state == "answered" and "--platform" not in reason:
            reason = f"{reason}; --platform {row['name']} asks for it"
        candidates.append(
            Candidate(name=row["name"], state=state, reason=reason, owner=owner_of(row), target=target)
        )
    explanation = Explanation(kind="platform", candidates=_winner_first(candidates))
    if choice is not None:
        explanation.answer = f"{choice['name']} of {choice['distribution']} {choice['version']}"
        explanation.why = choice["reason"]
        explanation.facts = {"class": choice["class_path"]}
        hooks = sorted({e["facts"]["hook"] for e in events_of(description, "hook_called")})
        explanation.facts |= {"hooks called": hooks}
    return explanation


def _platform_state(row: Row, asked: Mapping[str, Any] | None) -> str:
    if row["state"] in ("failed", "refused", "disabled"):
        return str(row["state"])
    if asked is None:
        return "not asked"
    return "answered" if asked.get("answer") else "declined"


def served_architecture(description: Description) -> str:
    """Return the architecture that the checkpoint asks for, or "" where there is no checkpoint."""
    served = events_of(description, "architecture_resolved")
    return str(served[-1]["facts"]["architecture"]) if served else ""


def explain_model(description: Description, architecture: str, *, winner: str = "", owner: str = "") -> Explanation:
    """Say who provides an architecture, and whether it is the one that is served.

    `winner` is its class path and `owner` whose it is, where the registry could be asked.
    """
    candidates = []
    for event in events_of(description, "registered", registry="models", key=architecture):
        facts = event["facts"]
        how = {"general": "registered by a general plugin", "hook": "registered by a platform hook"}
        reason = how.get(facts.get("via", ""), f"registered ({facts.get('via')})")
        if facts.get("replaced"):
            reason += f", in place of that of {facts['replaced']}"
        candidates.append(
            Candidate(
                name=architecture, state="registered", reason=reason, owner=facts["owner"], target=facts["value"]
            )
        )
    candidates = list({(c.owner, c.target): c for c in candidates}.values())
    for row in rows_of(description, "models"):
        if row["name"] == architecture:
            state = "entry point" if row["state"] in ("active", "idle") else str(row["state"])
            candidates.append(
                Candidate(
                    name=architecture, state=state, reason=row["reason"], owner=owner_of(row), target=row["target"]
                )
            )
    explanation = Explanation(kind="model", name=architecture, candidates=candidates)
    standing = [c for c in candidates if c.state in ("registered", "entry point")]
    won = next((c for c in standing if c.target == winner), None) if winner else next(iter(standing), None)
    if won is not None:
        won.state = "won"
        explanation.answer = f"{won.target} of {owner or won.owner}"
        explanation.why = won.reason
    elif winner:
        explanation.answer = f"{winner} of {owner}"
    explanation.candidates = _winner_first(candidates)
    for event in events_of(description, "architecture_resolved")[-1:]:
        _compare_with_served(explanation, won, **event["facts"])
    return explanation


def _compare_with_served(
    explanation: Explanation, won: Candidate | None, *, architecture: str, asked: list[str]
) -> None:
    """Say whether the checkpoint takes the architecture that an explanation is about, or another one."""
    reason = f"the checkpoint asks for {', '.join(asked)}"
    if architecture == explanation.name:
        explanation.facts["served here"] = f"asked for {', '.join(asked)}"
    elif explanation.answer:
        explanation.answer = f"not taken; instead: {architecture}"
        explanation.why = reason
    if won is None:
        return
    if architecture != explanation.name:
        won.state, won.reason = "not taken", reason
    elif won.reason.endswith("not needed so far"):
        won.reason = explanation.why = reason


def explain_plugins(description: Description, name: str) -> list[Explanation]:
    """Explain every plugin of that name, distribution:name, or distribution."""
    found = []
    for row in description["plugins"]:
        label = f"{row['distribution']}:{row['name']}"
        if name not in (row["name"], label, row["distribution"], f"{row['point']}={row['name']}"):
            continue
        events = description.get("events", [])
        mine = [e for e in events if e.get("plugin") == label and _point_of(e) in ("", row["point"])]
        facts = {
            "distribution": owner_of(row), "point": row["point"], "target": row["target"],
            "processes": row.get("processes", {}), "ms": row.get("ms"),
            "registrations": row.get("registrations", []), "notes": row.get("notes", []),
            "did": [f"{e['event']} in {e['process']}" for e in mine],
        }  # fmt: skip
        found.append(Explanation(kind="plugin", name=label, answer=row["state"], why=row["reason"], facts=facts))
    return found


def names_in(description: Description, kind: str = "") -> set[str]:
    """Name everything of a kind, or of all, that a description could explain, for a near miss."""
    from graftlm import layers
    from graftlm.ops.kernel_functions import BUILT_IN_KERNELS
    from graftlm.ops.names import BUILT_IN_OPS

    registered = [e["facts"] for e in events_of(description, "registered")]
    names = {
        "op": {e["facts"]["op"] for e in events_of(description, "op_dispatched")}
        | {row["name"] for point in ("custom_ops", "op_implementations") for row in rows_of(description, point)}
        | {*BUILT_IN_OPS, *layers.__all__},
        "model": {f["key"] for f in registered if f["registry"] == "models"},
        "kernel": {f["key"] for f in registered if f["registry"] == "kernel_functions"} | set(BUILT_IN_KERNELS),
        "plugin": {row[key] for row in description["plugins"] for key in ("name", "distribution")},
    }  # fmt: skip
    if not kind:
        return set().union(*names.values())
    return names.get(kind, set()) | {row["name"] for row in rows_of(description, KINDS[kind])}


def _point_of(event: Mapping[str, Any]) -> str:
    """Tell which point an event is about, or "" where it does not say."""
    points = {
        "detector_called": "platform_plugins", "platform_activated": "platform_plugins",
        "hook_called": "platform_plugins", "general_plugin_ran": "general_plugins",
        "stat_logger_loaded": "stat_logger_plugins", "endpoint_attached": "endpoint_plugins",
    }  # fmt: skip
    return str(event.get("facts", {}).get("point") or points.get(event["event"], ""))


def _winner_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: c.state != "won")
