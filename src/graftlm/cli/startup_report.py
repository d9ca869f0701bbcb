"""`--trace-startup`: where the time of a start went, in every process, as a table and as a trace file.

It reads what the processes recorded and what their plugin ledgers say; it measures nothing itself.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from graftlm.processes import startup_trace
from graftlm.processes.trace_file import MAIN_THREAD, ProcessTrace, Span, write_trace

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.plugins.host import PluginHost

TRACE_FLAG = "--trace-startup"
TRACE_FILE = "graftlm-startup.json"

#: What is shorter is not printed; the file has it.
_SHOWN_S = 0.02


def trace_file_of(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Give a bare flag the default file, lest it take MODEL for one; also returns the file, if any."""
    words = [f"{TRACE_FLAG}={TRACE_FILE}" if word == TRACE_FLAG else word for word in argv]
    files = [word.partition("=")[2] for word in words if word.startswith(f"{TRACE_FLAG}=")]
    return words, (files[-1] or TRACE_FILE) if files else None


def report_startup(llm: AsyncLLM, host: PluginHost, path: str, out: TextIO | None = None) -> None:
    """Print and write what was recorded until now, in this process and in those that are ready."""
    ready = llm.client.ready
    own = startup_trace.end()
    children = [startup_trace.read_trace(data) for data in (ready.startup_traces if ready is not None else [])]
    traces = [trace for trace in (own, *children) if trace is not None]
    if not traces:
        return
    events = host.events()
    launched = min(span.start for trace in traces for span in trace.spans)
    print("\n".join(_lines(traces, events, launched)), file=out or sys.stderr, flush=True)
    write_trace(path, [_with_plugins(trace, events) for trace in traces])
    print(f"\ntrace written to {path}; open it at https://ui.perfetto.dev", file=out or sys.stderr, flush=True)


def _lines(traces: Sequence[ProcessTrace], events: Sequence[dict[str, Any]], launched: float) -> Iterator[str]:
    yield f"start-up, {time.time() - launched:.2f} s; steps of {1000 * _SHOWN_S:.0f} ms and more"
    for trace in traces:
        yield f"\n{trace.process} (pid {trace.pid})"
        yield "   from ms   took ms"
        for depth, span in outline(trace.spans):
            name = f"import {span.name}" if span.category == "import" else span.name
            yield f"{1000 * (span.start - launched):10.0f}{1000 * span.seconds:10.0f}  {'  ' * depth}{name}"
        by_plugin = plugin_ms(events, trace.process)
        if by_plugin:
            yield f"{'':10}{sum(by_plugin.values()):10.1f}  of this in plugins (imports, calls, hooks), by name:"
        for plugin, ms in sorted(by_plugin.items(), key=lambda item: -item[1]):
            yield f"{'':10}{ms:10.1f}    plugin {plugin}"


def outline(spans: Sequence[Span], shortest_s: float = _SHOWN_S) -> Iterator[tuple[int, Span]]:
    """Yield the spans worth a line with their depth; inside an import only those of other packages."""
    threads: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s.start, -s.seconds)):
        if span.seconds >= shortest_s:
            threads[span.thread].append(span)
    for thread in sorted(threads, key=lambda name: name != MAIN_THREAD):
        around: list[Span] = []
        for span in threads[thread]:
            while around and span.start >= around[-1].start + around[-1].seconds:
                around.pop()
            if not (around and _same_package(around[-1], span)):
                yield len(around), span
                around.append(span)


def _same_package(outer: Span, inner: Span) -> bool:
    return outer.category == inner.category == "import" and _package(outer) == _package(inner)


def _package(span: Span) -> str:
    return span.name.partition(".")[0]


def plugin_ms(events: Sequence[dict[str, Any]], process: str) -> dict[str, float]:
    """Add up, by plugin, the milliseconds that the ledger of a process tells: imports, calls, hooks."""
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        ms = event.get("facts", {}).get("ms")
        if event["process"] == process and event.get("plugin") and isinstance(ms, int | float):
            totals[event["plugin"]] += ms
    return dict(totals)


def _with_plugins(trace: ProcessTrace, events: Sequence[dict[str, Any]]) -> ProcessTrace:
    """Lay the ledger's events beside the steps, on a track of their own."""
    spans = list(trace.spans)
    for event in events:
        if event["process"] == trace.process:
            facts = dict(event.get("facts", {}))
            seconds = float(facts.get("ms") or 0.0) / 1000
            name = " ".join(filter(None, (event["event"], event.get("plugin"))))
            spans.append(
                Span(
                    name=name, start=event["at"] - seconds, seconds=seconds, category="plugins", thread="plugins",
                    facts=facts,
                )
            )  # fmt: skip
    return ProcessTrace(process=trace.process, pid=trace.pid, spans=spans)
