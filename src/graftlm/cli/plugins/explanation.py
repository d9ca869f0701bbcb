"""What an explanation is, and how it is printed; knows nothing of what is explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from graftlm.cli.plugins.table import aligned


class Candidate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One that could have been chosen. `state` is "won", or a word for why it was not."""

    name: str
    state: str
    reason: str = ""
    owner: str = ""
    target: str = ""


class Explanation(msgspec.Struct, kw_only=True):
    """Who won, why, and who else asked. `error` says why nobody did; `facts` are read as `key: value` lines."""

    kind: str
    name: str = ""
    answer: str = ""
    why: str = ""
    error: str = ""
    candidates: list[Candidate] = []
    facts: dict[str, Any] = {}
    notes: list[str] = []


def is_called(candidate: Candidate, name: str) -> bool:
    """Tell whether `name` means a candidate: by name, distribution:name, class path, or as its distribution."""
    distribution = candidate.owner.partition(" ")[0]
    paths = {candidate.target, candidate.target.replace(":", ".")} - {""}
    return name in {candidate.name, f"{distribution}:{candidate.name}", distribution, *paths}


def about(explanation: Explanation, name: str) -> list[Explanation]:
    """Say what an explanation holds of the candidates called `name`: how each won, or to whom it lost and why.

    Without a name it stands as it is; an empty list says that nobody is called so.
    """
    if not name:
        return [explanation]
    meant = [c for c in explanation.candidates if is_called(c, name)]
    if any(c.state == "won" for c in meant):
        return [msgspec.structs.replace(explanation, name=name)]
    winners = [c for c in explanation.candidates if c.state == "won"]
    facts = {} if explanation.kind == "platform" else explanation.facts  # those of the winner
    return [
        msgspec.structs.replace(
            explanation, name=c.name, answer=_outcome(c, explanation.answer, is_decided=bool(winners)),
            why=c.reason, facts=facts, candidates=[*winners, c],
        )
        for c in meant
    ]  # fmt: skip


def _outcome(candidate: Candidate, answer: str, *, is_decided: bool) -> str:
    if is_decided:
        return f"{candidate.state}; instead: {answer}"
    return f"{candidate.state}; {answer}" if answer and candidate.state == "available" else candidate.state


def owner_of(row: Mapping[str, Any]) -> str:
    """Spell the distribution of a row of GET /plugins."""
    return f"{row['distribution']} {row['version']}"


def as_text(explanation: Explanation) -> str:
    """Write an explanation for a person."""
    head = " ".join(filter(None, [explanation.kind, explanation.name]))
    lines = [f"{head}: {explanation.answer or 'nobody'}"]
    if explanation.error:
        lines.append(f"  error: {explanation.error}")
    if explanation.why:
        lines.append(f"  why: {explanation.why}")
    lines += [
        f"  {key}: {_plain(value)}" for key, value in explanation.facts.items() if value not in (None, "", [], {})
    ]
    if explanation.candidates:
        lines.append("  candidates:")
        rows = [[c.state, c.name, c.owner, c.target, c.reason] for c in explanation.candidates]
        used = [column for column in zip(*rows, strict=True) if any(column)]
        lines += aligned(list(zip(*used, strict=True)), indent="    ")
    lines += [f"  note: {note}" for note in explanation.notes]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{k}={_plain(v)}" for k, v in value.items())
        case list() | tuple():
            return ("; " if any(isinstance(item, dict) for item in value) else ", ").join(map(_plain, value))
    return str(value)
