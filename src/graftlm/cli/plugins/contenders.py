"""Explains the plugins of one extension point from a description: who was taken, and what became of the others.

It asks nobody; who was taken may be told to it.
"""

from __future__ import annotations

from graftlm.cli.plugins.described import Description, events_of, rows_of
from graftlm.cli.plugins.explanation import Candidate, Explanation, is_called, owner_of
from graftlm.cli.plugins.kinds import ALL_TAKE_PART, KINDS

#: Kind → the event that tells who was taken, and the fact that names it.
_TAKEN = {
    "worker": ("worker_class_resolved", "worker_cls"), "communicator": ("communicator_built", "cls"),
    "executor": ("executor_chosen", "executor"), "scheduler": ("scheduler_chosen", "scheduler"),
    "loader": ("checkpoint_read", "format"),
    "source": ("model_resolved", "source"),
}  # fmt: skip

#: Kind → how to ask for one that was not taken.
_CURES = {
    "worker": "--worker-cls {} asks for it", "executor": "--distributed-executor-backend {} asks for it",
    "scheduler": "--scheduler-cls {} asks for it",
    "communicator": "a platform names one in get_device_communicator_cls",
    "loader": "--load-format {} asks for it", "source": "{}://… asks for it",
    "quantization": "--quantization {} asks for it",
}  # fmt: skip


def taken(description: Description, kind: str) -> str:
    """Return the name or path of what was taken, as far as events tell it, or ""."""
    event, fact = _TAKEN.get(kind, ("", ""))
    if not event:  # it is imported when it is taken
        return next((row["name"] for row in rows_of(description, KINDS[kind]) if row["state"] == "active"), "")
    found = [str(e["facts"][fact]) for e in events_of(description, event)]
    return found[-1] if found else ""


def explain_contenders(description: Description, kind: str, *, chosen: str = "", why: str = "") -> Explanation:
    """Say who of a kind is taken: `chosen`, a name or path, because of `why`; or all that are enabled."""
    explanation = Explanation(kind=kind, why=why if chosen else "")
    for row in rows_of(description, KINDS[kind]):
        candidate = Candidate(
            name=row["name"], state=row["state"], reason=row["reason"], owner=owner_of(row), target=row["target"]
        )
        enabled = row["state"] in ("active", "idle")
        if kind in ALL_TAKE_PART:
            candidate.state = "takes part" if enabled else row["state"]
        elif chosen and enabled and is_called(candidate, chosen):
            candidate.state, candidate.reason = "won", why
        elif enabled:
            candidate.state = "not taken" if chosen else "available"
            candidate.reason = _CURES[kind].format(row["name"])
        explanation.candidates.append(candidate)
    if kind in ALL_TAKE_PART:
        explanation.answer = ", ".join(c.name for c in explanation.candidates if c.state == "takes part")
        return explanation
    if kind == "communicator":
        remarks = [e["facts"].get("remark") for e in events_of(description, "communicator_built")]
        explanation.notes += dict.fromkeys(filter(None, remarks))
    won = next((c for c in explanation.candidates if c.state == "won"), None)
    if chosen and won is None:  # a class that no plugin publishes
        won = Candidate(name=chosen, state="won", reason=f"{why}, by its path")
        explanation.candidates.append(won)
    explanation.candidates.sort(key=lambda c: c.state != "won")
    if won is not None:
        explanation.answer = f"{won.name} of {won.owner}" if won.owner else won.name
    return explanation
