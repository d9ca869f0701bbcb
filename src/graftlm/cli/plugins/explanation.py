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
        f"  {key}: {_plain(value)}" for key, value in explanation.facts.items() if value not in (None, "", [])
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
            return ", ".join(map(_plain, value))
    return str(value)
