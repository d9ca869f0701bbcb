"""Explains what computes, as GET /plugins?events=true tells it: ops, kernel functions, attention backends.

It asks nobody: what no ledger holds it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graftlm.cli.plugins.described import Description, events_of, rows_of
from graftlm.cli.plugins.explanation import Candidate, Explanation, owner_of
from graftlm.ops.kernel_functions import BUILT_IN_KERNELS
from graftlm.plugins.spelling import counted

_REFERENCE = "the reference"


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
            how = [facts["reason"], *([computed_in(facts)] if state == "won" else [])]
            reason = f"{'; '.join(how)}; in {event['process']} ({_counted([event], 'object')})"
            explanation.candidates.append(Candidate(name=computed_by, state=state, reason=reason))
    if name == "linear" or _is_switch_of(name, "linear_op"):
        _add_kept_weights(explanation, description)
    if swaps:
        replacement = swaps[0]["facts"]["replacement"]
        explanation.answer = ", ".join(filter(None, [replacement, explanation.answer]))
    if not explanation.candidates:
        explanation.notes.append("no process has built it")
    return explanation


def computed_in(facts: Mapping[str, Any]) -> str:
    """Spell the format, and the instruction set where there is one, of an event that tells what computes."""
    return ", ".join(filter(None, [facts["format"] or "a format of its own", facts["instruction_set"]]))


def _add_kept_weights(explanation: Explanation, description: Description) -> None:
    """Add the methods that keep matrices in formats of their own and multiply with them, and what they refused."""
    for event in events_of(description, "weights_kept"):
        facts = event["facts"]
        explanation.answer = ", ".join(dict.fromkeys(filter(None, [explanation.answer, facts["method"]])))
        explanation.why = explanation.why or "the method that keeps the weights multiplies with them"
        reason = f"weights in {computed_in(facts)}; in {event['process']} ({_counted([event], 'layer')})"
        explanation.candidates.append(Candidate(name=facts["method"], state="won", reason=reason))
    for event in events_of(description, "weights_plain"):
        facts = event["facts"]
        reason = f"{facts['reason']}; in {event['process']} ({_counted([event], 'layer')})"
        explanation.candidates.append(Candidate(name=facts["method"], state="refused", reason=reason))


def explain_kernels(description: Description, name: str = "") -> Explanation:
    """Say who replaced the kernel function `name`, or any, and whether the replacement or the engine's own runs."""
    explanation = Explanation(kind="kernel", name=name)
    registered = events_of(description, "registered", registry="kernel_functions")
    names = sorted({*BUILT_IN_KERNELS, *(e["facts"]["key"] for e in registered)})
    said = []
    for kernel in [n for n in names if name in ("", n)]:
        bound = events_of(description, "kernel_replaced", kernel=kernel)
        unused = events_of(description, "kernel_unused", kernel=kernel)
        idle = next((str(e["facts"]["reason"]) for e in unused if not bound), "")
        overrides = [e for e in registered if e["facts"]["key"] == kernel]
        for event in overrides:
            facts, process = event["facts"], event["process"]
            here = [e for e in bound if e["process"] == process]
            uses = f"bound by {_counted(here, 'object')}" if here else idle or "no object has bound it"
            explanation.candidates.append(
                Candidate(
                    name=kernel, state="not in use" if idle else "won", reason=f"in {process}; {uses}",
                    owner=facts["owner"], target=facts["value"],
                )
            )  # fmt: skip
            said.append(f"{facts['value']} of {facts['owner']}" + (f", but not in use: {idle}" if idle else ""))
        if kernel in BUILT_IN_KERNELS:
            state = "lost" if overrides else "not in use" if idle else "won"
            reason = f"{_REFERENCE}; {idle}" if idle and not overrides else _REFERENCE
            explanation.candidates.append(
                Candidate(name=kernel, state=state, reason=reason, target=BUILT_IN_KERNELS[kernel])
            )
            if name and not overrides:
                said.append(BUILT_IN_KERNELS[kernel] + (f", not in use: {idle}" if idle else ""))
    answer = "; ".join(dict.fromkeys(said))
    explanation.answer = f"replaced by {answer}" if ", but not in use" in answer else answer or "the engine's own"
    return explanation


def explain_attention(description: Description) -> Explanation:
    """Say which backend the platform named for each distinct question, in each process."""
    explanation = Explanation(kind="attention")
    asked: dict[str, list[dict[str, Any]]] = {}
    for event in events_of(description, "attention_asked"):
        asked.setdefault(event["facts"]["answer"], []).append(event)
    rows = rows_of(description, "attention_backends")
    choice = (description.get("plan") or {}).get("platform") or {}
    for answer, events in asked.items():
        question = ", ".join(f"{k}={v}" for k, v in events[0]["facts"]["question"].items() if v is not None)
        processes = ", ".join(dict.fromkeys(e["process"] for e in events))
        row = next((row for row in rows if _is_answer(row, answer)), None)
        explanation.candidates.append(
            Candidate(
                name=row["name"] if row else _dotted(answer).rpartition(".")[2], state="won", target=answer,
                owner=owner_of(row) if row else choice.get("distribution", ""),
                reason=f"the platform named it for {question}; in {processes}",
            )
        )  # fmt: skip
    explanation.answer = ", ".join(asked)
    for row in rows:
        if not any(_is_answer(row, answer) for answer in asked):
            explanation.candidates.append(
                Candidate(
                    name=row["name"], owner=owner_of(row), target=row["target"], reason=row["reason"],
                    state="not named" if row["state"] in ("active", "idle") else row["state"],
                )
            )  # fmt: skip
    if not asked:
        explanation.notes.append("no process has asked the platform yet")
    return explanation


def _is_answer(row: Mapping[str, Any], answer: str) -> bool:
    """Tell whether a platform's answer, a path or a name, means the backend of a row of GET /plugins."""
    return answer == row["name"] or _dotted(answer) == _dotted(row["target"])


def _dotted(path: str) -> str:
    return path.replace(":", ".")


def _spellings(path: str) -> set[str]:
    return {path, path.rpartition(".")[2].rpartition(":")[2]}


def _is_switch_of(class_name: str, op: str) -> bool:
    """Tell whether `RMSNorm` or `RotaryEmbedding` is how a person would write the op of that switch name."""
    return class_name.rpartition(".")[2].rpartition(":")[2].lower() == op.replace("_", "")


def _counted(events: Iterable[Mapping[str, Any]], noun: str) -> str:
    """Count what events tell of, which may be many things each."""
    return counted(sum(int(event["facts"].get("count", event.get("count", 1))) for event in events), noun)
