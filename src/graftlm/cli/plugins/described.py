"""Explains from what GET /plugins?events=true says, be it of a running server or of this process.

It asks nobody: what no ledger holds it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graftlm.cli.plugins.explanation import Candidate, Explanation, owner_of
from graftlm.cli.plugins.kinds import KINDS
from graftlm.plugins.spelling import counted

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


def explain_model(description: Description, architecture: str, *, winner: str = "") -> Explanation:
    """Say who provides an architecture: `winner` is its class path, where the registry could be asked."""
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
        explanation.answer = f"{won.target} of {won.owner}"
        explanation.why = won.reason
    elif winner:
        explanation.answer = winner
    explanation.candidates = _winner_first(candidates)
    served = [e["facts"] for e in events_of(description, "architecture_resolved")]
    if served and served[0]["architecture"] == architecture:
        explanation.facts["served here"] = f"asked for {', '.join(served[0]['asked'])}"
    return explanation


def explain_op(description: Description, name: str) -> Explanation:
    """Say what each process built for an op: by its switch name, its class's name or path."""
    explanation = Explanation(kind="op", name=name)
    swaps = [e for e in events_of(description, "op_swapped") if name in _spellings(e["facts"]["cls"])]
    for event in swaps:
        explanation.candidates.append(
            Candidate(
                name=event["facts"]["replacement"], state="won",
                reason=f"replaces {event['facts']['cls']} in {event['process']} ({_counted([event], 'layer')})",
            )
        )  # fmt: skip
    for what, state in (("op_dispatched", "won"), ("op_refused", "refused")):
        for event in events_of(description, what):
            facts = event["facts"]
            if name not in (facts["op"], facts["op"].replace("_", "")) and not _is_switch_of(name, facts["op"]):
                continue
            if state == "won":
                explanation.answer, explanation.why = facts["method"], facts["reason"]
            computed_by = facts["method"] if state == "won" else facts["implementation"]
            reason = f"{facts['reason']}; in {event['process']} ({_counted([event], 'object')})"
            explanation.candidates.append(Candidate(name=computed_by, state=state, reason=reason))
    if name == "linear" or _is_switch_of(name, "linear_op"):
        _add_kept_weights(explanation, events_of(description, "weights_kept"))
    if swaps:
        replacement = swaps[0]["facts"]["replacement"]
        explanation.answer = ", ".join(filter(None, [replacement, explanation.answer]))
    if not explanation.candidates:
        explanation.notes.append("no process has built it")
    return explanation


def _add_kept_weights(explanation: Explanation, events: list[dict[str, Any]]) -> None:
    """Add the methods that keep matrices in formats of their own, and multiply with them in the op's place."""
    for event in events:
        facts = event["facts"]
        explanation.answer = ", ".join(dict.fromkeys(filter(None, [explanation.answer, facts["method"]])))
        explanation.why = explanation.why or "the method that keeps the weights multiplies with them"
        using = f", {facts['instruction_set']}" if facts["instruction_set"] else ""
        reason = f"weights in {facts['format']}{using}; in {event['process']} ({_counted([event], 'layer')})"
        explanation.candidates.append(Candidate(name=facts["method"], state="won", reason=reason))


def explain_kernels(description: Description, name: str = "") -> Explanation:
    """Say who replaced the kernel function `name`, or any, and whether the replacement runs."""
    wanted = {"key": name} if name else {}
    explanation = Explanation(kind="kernel", name=name)
    said = []
    for event in events_of(description, "registered", registry="kernel_functions", **wanted):
        facts, process = event["facts"], event["process"]
        bound = events_of(description, "kernel_replaced", kernel=facts["key"])
        unused = events_of(description, "kernel_unused", kernel=facts["key"])
        here = [e for e in bound if e["process"] == process]
        idle = next((str(e["facts"]["reason"]) for e in unused if not bound), "")
        uses = f"bound by {_counted(here, 'object')}" if here else idle or "no object has bound it"
        explanation.candidates.append(
            Candidate(
                name=facts["key"], state="not in use" if idle else "won", reason=f"in {process}; {uses}",
                owner=facts["owner"], target=facts["value"],
            )
        )  # fmt: skip
        said.append(f"{facts['value']} of {facts['owner']}" + (f", but not in use: {idle}" if idle else ""))
    answer = "; ".join(dict.fromkeys(said))
    explanation.answer = (f"replaced by {answer}" if "not in use" in answer else answer) or "the engine's own"
    return explanation


def explain_attention(description: Description) -> Explanation:
    """Say which backend the platform named for each distinct question, in each process."""
    explanation = Explanation(kind="attention")
    asked: dict[str, list[dict[str, Any]]] = {}
    for event in events_of(description, "attention_asked"):
        asked.setdefault(event["facts"]["answer"], []).append(event)
    for answer, events in asked.items():
        question = ", ".join(f"{k}={v}" for k, v in events[0]["facts"]["question"].items() if v is not None)
        processes = ", ".join(dict.fromkeys(e["process"] for e in events))
        explanation.candidates.append(
            Candidate(name=answer, state="won", reason=f"the platform named it for {question}; in {processes}")
        )
    explanation.answer = ", ".join(asked)
    for row in rows_of(description, "attention_backends"):
        if row["target"] not in asked:
            explanation.candidates.append(
                Candidate(
                    name=row["name"], owner=owner_of(row), target=row["target"], reason=row["reason"],
                    state="not named" if row["state"] in ("active", "idle") else row["state"],
                )
            )  # fmt: skip
    if not asked:
        explanation.notes.append("no process has asked the platform yet")
    return explanation


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


def _spellings(path: str) -> set[str]:
    return {path, path.rpartition(".")[2].rpartition(":")[2]}


def _is_switch_of(class_name: str, op: str) -> bool:
    """Tell whether `RMSNorm` or `RotaryEmbedding` is how a person would write the op of that switch name."""
    return class_name.rpartition(".")[2].rpartition(":")[2].lower() == op.replace("_", "")


def _counted(events: Iterable[Mapping[str, Any]], noun: str) -> str:
    """Count what events tell of, which may be many things each."""
    return counted(sum(int(event["facts"].get("count", event.get("count", 1))) for event in events), noun)
