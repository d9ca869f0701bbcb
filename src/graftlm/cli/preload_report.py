"""What `graftlm preload` and `graftlm doctor` show of the user's warm parents; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from graftlm.plugins.spelling import counted
from graftlm.processes.warm.client import NotTaken, WarmParentAddress


def describe_parents(parents: Sequence[WarmParentAddress]) -> list[dict[str, Any]]:
    """Return each parent as it describes itself; one that does not answer says so as its `problem`."""
    return [_describe(parent) for parent in parents]


def _describe(parent: WarmParentAddress) -> dict[str, Any]:
    record = parent.record
    facts: dict[str, Any] = {
        "model": record.model,
        "checkpoint": record.checkpoint,
        "pid": record.pid,
        "age_s": round(time.time() - record.since),
    }
    if not record.ready:
        return {**facts, "state": "starting"}
    try:
        status = parent.status()
    except NotTaken as error:
        return {**facts, "state": "silent", "problem": str(error)}
    return {
        **facts,
        "state": "stale" if status.stale else "ready",
        "holds": status.holds or "no weights",
        "memory_bytes": status.memory_bytes,
        "time_left_s": round(status.time_left_s),
        "taken": status.taken,
        "running": status.running,
        "stale": status.stale,
    }


def as_text(described: Sequence[dict[str, Any]]) -> str:
    """Say it in a line or two for each parent."""
    return "\n".join(line for facts in described for line in _lines(facts)) or "there is no warm parent"


def _lines(facts: dict[str, Any]) -> list[str]:
    head = f"{facts['model']}: warm parent {facts['pid']}, {facts['state']}, up {_span(facts['age_s'])}"
    if "holds" not in facts:
        return [head + (f": {facts['problem']}" if "problem" in facts else "")]
    lines = [
        f"{head}; holds torch, the kernels and {facts['holds']} in {facts['memory_bytes'] / 2**20:.0f} MiB",
        f"  {counted(facts['taken'], 'process')} taken, {facts['running']} running; ends after "
        f"{_span(facts['time_left_s'])} in which none is taken",
    ]
    return lines + [f"  stale: {reason}" for reason in facts["stale"]]


def _span(seconds: float) -> str:
    """Write a length of time in its two largest units."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
