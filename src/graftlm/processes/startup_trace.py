"""Records, on request, where a process's start-up went: named steps, and every import that takes time.

Unasked it costs a comparison per step. It does not know the steps; whoever takes one names it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from graftlm.plugins.import_machinery import find_behind
from graftlm.processes.trace_file import MAIN_THREAD, ProcessTrace, Span

#: An import shorter than this is part of whatever it stands in.
_SHORTEST_IMPORT_S = 0.002

_trace: ProcessTrace | None = None


def begin(process: str) -> None:
    """Record from now on; the time since the operating system started the process is its first span."""
    global _trace
    if _trace is not None:
        return
    now, started = time.time(), process_start_time()
    _trace = ProcessTrace(process=process, pid=os.getpid())
    if started is not None:
        _add("the interpreter starts", "process", started, now - started)
    sys.meta_path.insert(0, _ImportClock())


def recording() -> bool:
    return _trace is not None


@contextlib.contextmanager
def span(name: str, category: str = "step", **facts: Any) -> Iterator[None]:
    """Record what happens inside as one step, also when it raises."""
    if _trace is None:
        yield
        return
    wall, start = time.time(), time.perf_counter()
    try:
        yield
    finally:
        _add(name, category, wall, time.perf_counter() - start, **facts)


def add_span(name: str, *, start: float, seconds: float) -> None:
    """Record a step that has been taken: when it began, by the wall clock, and how long it took."""
    _add(name, "step", start, seconds)


def end() -> ProcessTrace | None:
    """Stop recording and return what was recorded, or None if nobody asked for it."""
    global _trace
    trace, _trace = _trace, None
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ImportClock)]
    return trace


def end_as_bytes() -> bytes:
    """Stop recording and encode what was recorded, for the parent; empty if nobody asked for it."""
    trace = end()
    return b"" if trace is None else msgspec.msgpack.encode(trace)


def read_trace(data: bytes) -> ProcessTrace:
    return msgspec.msgpack.decode(data, type=ProcessTrace)


def process_start_time() -> float | None:
    """Return the wall-clock time at which this process was started, to a hundredth of a second; None if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux
        return None
    return time.time() - age


def _add(name: str, category: str, start: float, seconds: float, **facts: Any) -> None:
    if _trace is None:  # ended meanwhile, by another thread
        return
    thread = threading.current_thread()
    label = MAIN_THREAD if thread is threading.main_thread() else thread.name
    _trace.spans.append(Span(name=name, start=start, seconds=seconds, category=category, thread=label, facts=facts))


class _ImportClock:
    """A finder that lets those behind it on sys.meta_path find, and times what they found being loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        wall, start = time.time(), time.perf_counter()
        spec = find_behind(self, name, path, target)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is None or isinstance(spec.loader, type):  # built-in and frozen modules take no time
            return spec

        def exec_module(module: ModuleType) -> None:
            del spec.loader.exec_module
            try:
                execute(module)
            finally:
                seconds = time.perf_counter() - start
                if seconds >= _SHORTEST_IMPORT_S:
                    _add(name, "import", wall, seconds)

        with contextlib.suppress(AttributeError):  # a loader with slots of its own is not timed
            spec.loader.exec_module = exec_module
        return spec
