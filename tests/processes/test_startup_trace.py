"""Where a start's time went: steps, imports, and the file that Perfetto opens."""

from __future__ import annotations

import importlib
import json
import sys
import time

import pytest

from graftlm.processes import startup_trace
from graftlm.processes.trace_file import ProcessTrace, Span, write_trace


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    (tmp_path / "slow_outer.py").write_text("import slow_inner\n")
    (tmp_path / "slow_inner.py").write_text("import time; time.sleep(0.03)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "slow_outer"
    for name in ("slow_outer", "slow_inner"):
        sys.modules.pop(name, None)


def test_nothing_is_recorded_unasked(slow_module):
    """A span costs nothing and import finders stay as they were."""
    finders = list(sys.meta_path)
    with startup_trace.span("step"):
        importlib.import_module(slow_module)

    assert startup_trace.end() is None
    assert sys.meta_path == finders


def test_steps_and_imports_are_recorded(slow_module):
    """A step contains the imports it caused, with their times; loaders are left as they were."""
    startup_trace.begin("test")
    try:
        with pytest.raises(ZeroDivisionError), startup_trace.span("step", detail=1):
            importlib.import_module(slow_module)
            raise ZeroDivisionError
    finally:
        trace = startup_trace.end()

    spans = {span.name: span for span in trace.spans}
    assert spans["step"].facts == {"detail": 1}
    assert spans["step"].seconds >= spans["slow_outer"].seconds >= spans["slow_inner"].seconds >= 0.03
    assert spans["slow_outer"].start <= spans["slow_inner"].start <= time.time()
    assert "exec_module" not in vars(sys.modules["slow_outer"].__spec__.loader)
    assert startup_trace.read_trace(startup_trace.end_as_bytes() or _encoded(trace)) == trace


def test_a_finder_that_asks_all_others_and_the_clock_do_not_ask_each_other(slow_module, monkeypatch):
    """Such as one that a library puts in front of those that it found."""

    class AsksAll:
        def find_spec(self, name, path=None, target=None):
            others = (f.find_spec(name, path, target) for f in sys.meta_path if f is not self)
            return next(filter(None, others), None)

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    startup_trace.begin("test")
    try:
        sys.meta_path.insert(0, AsksAll())
        importlib.import_module(slow_module)
    finally:
        trace = startup_trace.end()

    assert "slow_outer" in [span.name for span in trace.spans]


def _encoded(trace):
    import msgspec

    return msgspec.msgpack.encode(trace)


def test_the_process_is_older_than_its_code():
    """The interpreter's own start is the first span."""
    started = startup_trace.process_start_time()

    assert started is None or 0 < time.time() - started < 24 * 3600


def test_a_trace_file_names_processes_and_threads(tmp_path):
    """The Trace Event Format: microseconds, complete events and moments, one track for each thread."""
    spans = [Span(name="load", start=10.0, seconds=0.5), Span(name="seen", start=10.25, thread="watch")]
    write_trace(tmp_path / "trace.json", [ProcessTrace(process="core", pid=7, spans=spans)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    named = {(e["name"], e["tid"]): e["args"].get("name") for e in events if e["ph"] == "M"}
    load = next(e for e in events if e["name"] == "load")
    seen = next(e for e in events if e["name"] == "seen")
    assert (named["process_name", 0], named["thread_name", 1]) == ("core", "watch")
    assert (load["ph"], load["ts"], load["dur"], load["pid"], load["tid"]) == ("X", 10_000_000, 500_000, 7, 0)
    assert (seen["ph"], seen["tid"]) == ("i", 1)
