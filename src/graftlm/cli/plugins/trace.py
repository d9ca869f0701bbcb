"""`graftlm plugins trace -- COMMAND`: runs a graftlm command and shows what its plugins do, stop by stop, live.

Every process of the command appends its ledger to one file, which is read while it grows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.plugins.command_run import CommandRun, split_command
from graftlm.cli.plugins.stops import FRONT_END, TITLES, stop_of
from graftlm.cli.startup import make_parser, show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.live_trace import TraceLine
from graftlm.processes.failure import describe_exit
from graftlm.processes.trace_file import ProcessTrace, Span, write_trace

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

_TERMINAL = "terminal"
_LONGEST = 120


class Stop(msgspec.Struct, kw_only=True):
    """One event and its place in the life of a plugin: what `--json` prints on a line."""

    at: float
    stop: int | None
    title: str
    process: str
    pid: int
    event: str
    plugin: str | None
    facts: dict[str, Any]


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins trace", "Run a command and show the sixteen stops of its plugins, live.")
    parser.usage = "graftlm plugins trace [OPTION …] -- serve MODEL [OPTION …]"
    parser.add_argument("--json", action="store_true", help="Print a line of JSON for each event.")
    parser.add_argument("--perfetto", metavar="FILE", help="Write a trace file, which ui.perfetto.dev opens.")
    parser.add_argument("--until-ready", action="store_true", help="End the command once it is ready to serve.")
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    flags, command = split_command(argv, example="graftlm plugins trace -- serve demo")
    words = parser.parse_strictly(flags)
    if words.perfetto and not Path(words.perfetto).absolute().parent.is_dir():
        raise UsageError(f"--perfetto {words.perfetto}: there is no such folder")
    printer = _print_json if words.json else _TextPrinter()
    stops: list[Stop] = []
    try:
        with CommandRun(command, shutdown=shutdown) as traced:
            ready = False
            for stop in _begin(command, traced.pid):
                stops.append(stop)
                printer(stop)
            for line in traced.lines():
                stops.append(place(line))
                printer(stops[-1])
                if words.until_ready and line.process == FRONT_END and line.event.event == "ready":
                    ready = True
                    traced.end()
    finally:
        if words.perfetto:
            write_trace(words.perfetto, as_spans(stops))
    if ready or shutdown.requested.is_set():
        return 0
    return _exit_code(traced.code)


def _exit_code(code: int | None) -> int:
    """Return the command's own code; of one that was killed, say so, and return what a shell would."""
    if code is None or code >= 0:
        return code or 0
    print(f"graftlm plugins trace: the command {describe_exit(code)}", file=sys.stderr)
    return 128 - code


def place(line: TraceLine) -> Stop:
    """Say at which stop an event happened."""
    event = line.event
    stop = stop_of(line.process, event.event, event.facts)
    return Stop(
        at=event.at, stop=stop, title=TITLES.get(stop or 0, ""), process=line.process, pid=line.pid,
        event=event.event, plugin=event.plugin, facts=event.facts,
    )  # fmt: skip


def _begin(command: list[str], pid: int) -> Iterator[Stop]:
    """Tell the two stops before any process has a ledger: what is installed, and what is started."""
    for plugin in discover(ALL_POINTS).plugins:
        if not plugin.built_in:
            facts = {"point": plugin.point, "target": plugin.value, "version": plugin.version}
            yield _told(1, "entry_point", facts, plugin=plugin.label)
    yield _told(2, "command_started", {"command": " ".join(command), "pid": pid})


def _told(stop: int, event: str, facts: dict[str, Any], *, plugin: str | None = None) -> Stop:
    import os

    return Stop(
        at=time.time(), stop=stop, title=TITLES[stop], process=_TERMINAL, pid=os.getpid(), event=event,
        plugin=plugin, facts=facts,
    )  # fmt: skip


def as_spans(stops: Iterable[Stop]) -> list[ProcessTrace]:
    """Turn events into a trace of each process, with a row for each stop; what took time is a span."""
    traces: dict[int, ProcessTrace] = {}
    for stop in stops:
        trace = traces.setdefault(stop.pid, ProcessTrace(process=stop.process, pid=stop.pid))
        seconds = float(stop.facts.get("ms") or 0.0) / 1000
        name = " ".join(filter(None, [stop.event, str(stop.facts.get("hook") or ""), stop.plugin]))
        row = f"stop {stop.stop:02} {stop.title}" if stop.stop is not None else "other"
        trace.spans.append(
            Span(
                name=name, start=stop.at - seconds, seconds=seconds, category=stop.event, thread=row,
                facts={**stop.facts, "plugin": stop.plugin},
            )
        )  # fmt: skip
    for trace in traces.values():
        trace.spans.sort(key=lambda span: (span.thread, span.start))
    return list(traces.values())


def _print_json(stop: Stop) -> None:
    print(msgspec.json.encode(stop).decode(), flush=True)


class _TextPrinter:
    """A heading when a stop is first reached, then a line for each event: seconds, process, what, whose.

    What belongs to no stop is for `--json` only.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._start: float | None = None

    def __call__(self, stop: Stop) -> None:
        self._start = stop.at if self._start is None else self._start
        if stop.stop is None:
            return
        if stop.stop not in self._seen:
            self._seen.add(stop.stop)
            print(f"stop {stop.stop}: {stop.title}", flush=True)
        what = " ".join(filter(None, [stop.event, stop.plugin]))
        line = f"  {stop.stop:2}  {stop.at - self._start:7.3f} s  {stop.process:<12}  {what}  {_facts(stop.facts)}"
        print(line.rstrip(), flush=True)


def _facts(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in facts.items() if value not in (None, "", [], {}))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
