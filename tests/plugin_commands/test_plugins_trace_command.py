"""`graftlm plugins trace`: the sixteen stops, live, as text, as JSON and for Perfetto; free when it is off."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.cli.plugins.stops import TITLES, stop_of
from graftlm.plugins.ledger import Ledger
from graftlm.plugins.live_trace import LiveTrace, read_line

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def traced(tmp_path_factory, example_wheels, tiny_llama):
    """The trace of a tiny Llama on the dummy platform with two workers: JSON lines and the Perfetto file."""
    folder = tmp_path_factory.mktemp("traced")
    site = Site(folder / "site").install(*example_wheels)
    done = run_graftlm(
        "plugins", "trace", "--json", "--until-ready", "--perfetto", str(folder / "trace.json"), "--",
        "serve", str(tiny_llama), "--tensor-parallel-size=2", "--port=0", env=site.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], folder / "trace.json"


def test_the_table_has_the_stops_of_the_architecture():
    """Sixteen, as docs/architecture.md counts them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    numbers = [
        int(n) for n in re.findall(r"^ *(\d+)\. ", page.split("## The life of `graftlm serve`")[1], re.MULTILINE)
    ]

    assert list(TITLES) == list(range(1, 17)) == numbers[:16]


def test_the_same_event_is_another_stop_in_another_process():
    """Children obey where the front end decides."""
    assert [stop_of(p, "general_plugin_ran", {}) for p in ("front end", "engine core", "worker 1")] == [4, 9, 11]
    assert [stop_of(p, "plan_sent", {}) for p in ("front end", "engine core")] == [8, 10]
    assert stop_of("worker 0", "loaded", {"point": "models"}) == 13
    assert stop_of("front end", "registered", {"registry": "quantization_methods", "via": "hook"}) == 5
    assert stop_of("front end", "registered", {"registry": "models", "via": "engine"}) is None
    assert stop_of("front end", "something new", {}) is None


def test_every_stop_is_told_by_the_process_it_happens_in(traced):
    """All sixteen of a server with two workers, each with its title, in the order of their first event."""
    lines, _ = traced
    first = {line["stop"]: line for line in reversed(lines) if line["stop"]}

    assert sorted(first) == list(range(1, 17))
    assert {line["title"] for line in lines if line["stop"]} == set(TITLES.values())
    assert {first[n]["process"] for n in (3, 4, 5, 6, 7, 8)} == {"front end"}
    assert (first[9]["process"], first[10]["process"]) == ("engine core", "engine core")
    for stop in (11, 12, 13, 14, 15, 16):
        workers = {line["process"] for line in lines if line["stop"] == stop}
        assert {"worker 0", "worker 1"} <= workers, stop
    order = [first[n]["at"] for n in (1, 2, 3, 4, 5, 8, 9, 10, 11, 12)]
    assert order == sorted(order)


def test_the_lines_are_the_ledgers_own(traced):
    """Who was called, with what, in which process: pids included."""
    lines, _ = traced
    hooks = {line["facts"]["hook"]: line for line in lines if line["event"] == "hook_called"}
    swapped = [line for line in lines if line["event"] == "op_swapped"]

    assert hooks["check_and_update_config"]["plugin"] == "graftlm-dummy-platform:dummy_platform_plugin"
    assert len({line["pid"] for line in lines if line["process"] != "terminal"}) == 4
    assert {line["facts"]["replacement"] for line in swapped} == {
        "graftlm_dummy_platform.rotary.DummyRotaryEmbedding"
    }
    assert [line["process"] for line in lines if line["event"] == "ready"][-1] == "front end"


def test_both_words_of_the_platform_are_told_with_their_owner(traced):
    """Its default and its last word about the ops' base mode, and what came of it in each worker, and why."""
    lines, _ = traced
    stages = [line["facts"] for line in lines if line["event"] == "config_stage"]
    words = [
        (s["owner"], s["changes"]["compilation.custom_ops"])
        for s in stages
        if "compilation.custom_ops" in s["changes"]
    ]
    chosen = [
        line for line in lines if line["event"] == "op_dispatched" and line["facts"]["op"] == "rotary_embedding"
    ]

    assert words == [("platform dummy_platform_plugin", ["none"]), ("platform dummy_platform_plugin", ["all"])]
    assert sorted(line["process"] for line in chosen) == ["worker 0", "worker 1"]
    assert {line["facts"]["reason"] for line in chosen} == {"own forward_oot for DummyDevice"}


def test_perfetto_gets_a_row_for_each_stop_of_each_process(traced):
    """Chrome's trace events: names of processes and threads, and spans where time was measured."""
    lines, file = traced
    events = json.loads(file.read_text())["traceEvents"]
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}

    assert processes == {line["process"] for line in lines}
    assert "stop 12 the worker class, the device, the communicator" in rows
    assert any(e["ph"] == "X" and e["dur"] > 0 and e["cat"] == "general_plugin_ran" for e in events)
    assert all({"pid", "tid", "ph"} <= e.keys() for e in events)


def test_text_is_a_heading_and_a_line_for_each_event(installed, example_wheels):
    """Of any command; its code is ours, and what it prints goes to stderr."""
    installed.install(*example_wheels)
    done = run_graftlm("plugins", "trace", "--", "plugins", "list", env=installed.environment)
    failed = run_graftlm("plugins", "trace", "--", "serve", "--platform=cpuu", env=installed.environment)
    headings = [line for line in done.stdout.splitlines() if line.startswith("stop ")]

    assert done.returncode == 0, done.stderr
    assert headings == [f"stop {n}: {TITLES[n]}" for n in (1, 2, 3, 4)]
    assert re.search(r"^   3 +\d+\.\d{3} s  front end +detector_called graftlm:cpu  ", done.stdout, re.MULTILINE)
    assert "point " in done.stderr and "point  " not in done.stdout
    assert failed.returncode == 1 and "did you mean 'cpu'" in failed.stderr


@pytest.mark.parametrize(
    "words", [[], ["--", "no-such-command"], ["serve"], ["--perfetto", "/nowhere/x", "--", "serve"]]
)
def test_trace_refuses_what_it_cannot_run(words):
    """No command, an unknown one, a folder that is not there: code 2 and one line."""
    done = run_graftlm("plugins", "trace", *words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "graftlm plugins trace --help" in done.stderr


def test_a_trace_costs_nothing_while_it_is_off():
    """Without GRAFTLM_TRACE the writer is not even imported."""
    script = (
        "import sys; from graftlm.platforms.bootstrap import bootstrap_frontend; host = bootstrap_frontend();"
        "print(host.ledger.sink, 'graftlm.plugins.live_trace' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)

    assert done.stdout.split() == ["None", "False"]


def test_a_trace_that_cannot_be_written_is_said(tmp_path):
    """At the start it stops it; later it ends the trace and nothing else."""
    done = run_graftlm("plugins", "list", env={"GRAFTLM_TRACE": str(tmp_path / "nowhere" / "trace")})
    ledger = Ledger()
    ledger.sink = trace = LiveTrace(tmp_path / "trace", process="test")
    ledger.record("first", number=1)
    os.close(trace._file)
    ledger.record("second")
    ledger.record("third")

    assert done.returncode == 1 and "GRAFTLM_TRACE=" in done.stderr and "unset it" in done.stderr
    (line,) = map(read_line, (tmp_path / "trace").read_bytes().splitlines())
    assert (line.process, line.pid, line.event.event) == ("test", os.getpid(), "first")
    assert [event.event for event in ledger.events] == ["first", "second", "third"]
