"""Writes what several processes did, and when, as a trace file that Perfetto and chrome://tracing open.

It does not know what the spans mean, nor how they were recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

MAIN_THREAD = "main"


class Span(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that took `seconds` from `start` on, a wall-clock time; 0 seconds make it a moment."""

    name: str
    start: float
    seconds: float = 0.0
    category: str = ""
    thread: str = MAIN_THREAD
    facts: dict[str, Any] = {}


class ProcessTrace(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The spans of one process, in any order; those of one thread may contain but not cross each other."""

    process: str
    pid: int
    spans: list[Span] = []


def write_trace(path: str | Path, traces: Iterable[ProcessTrace]) -> None:
    """Write the Trace Event Format; processes stand in the given order."""
    events = [event for place, trace in enumerate(traces) for event in _events(trace, place)]
    Path(path).write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))


def _events(trace: ProcessTrace, place: int) -> list[dict[str, Any]]:
    pid = trace.pid
    threads = {
        name: number for number, name in enumerate(dict.fromkeys((MAIN_THREAD, *(s.thread for s in trace.spans))))
    }
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": trace.process}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}},
    ]
    for name, number in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": name}})
    for span in trace.spans:
        event: dict[str, Any] = {
            "name": span.name,
            "cat": span.category or "graftlm",
            "pid": pid,
            "tid": threads[span.thread],
            "ts": round(span.start * 1e6),
            "args": span.facts,
        }
        extent = {"ph": "X", "dur": round(span.seconds * 1e6)} if span.seconds else {"ph": "i", "s": "t"}
        events.append(event | extent)
    return events
