"""The start of `graftlm serve`: the port answers at once, children start ahead, and the time is accounted for."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest
from plugin_packages import Site
from server import Server

from graftlm.cli.ahead import Port
from graftlm.cli.startup_report import TRACE_FILE, outline, plugin_ms, trace_file_of
from graftlm.frontend.http import early_answers
from graftlm.frontend.http.early_answers import EarlyAnswers
from graftlm.processes.liveness import is_running
from graftlm.processes.trace_file import Span


@pytest.fixture
def early(monkeypatch):
    monkeypatch.setattr(early_answers, "_PATIENCE_S", 60)  # with a client that a busy machine holds up
    listener = socket.create_server(("127.0.0.1", 0))
    answers = EarlyAnswers(listener, reason="choosing plugins")
    yield answers, f"http://127.0.0.1:{listener.getsockname()[1]}"
    answers.stop()
    listener.close()


def ask(url: str, data: bytes | None = None) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_port_that_is_none_is_not_bound_at_its_remainder(caplog):
    """The system would take 65536 + n for n; the flags' check tells of it later."""
    with caplog.at_level("INFO", "graftlm"):
        for port in (65536 + 4464, -1, 2**40):
            with Port() as opened:
                opened.open({"server.port": port})
                assert opened.hand_over() is None

    assert "listening" not in caplog.text


def test_early_answers_give_the_reason(early):
    """/health in its own shape, everything else as an OpenAI error, a large body notwithstanding."""
    answers, url = early
    health = ask(f"{url}/health")
    answers.say("fetching the model")
    status, body = ask(f"{url}/v1/completions", b"x" * 300_000)

    assert health == (503, {"status": "starting", "reason": "choosing plugins"})
    assert (status, body["error"]["code"]) == (503, "not_ready")
    assert "fetching the model" in body["error"]["message"]


def test_a_start_may_be_given_up_before_the_thread_has_begun(monkeypatch):
    """Its listener is closed then: the thread has nothing to do, and nothing to complain of."""
    listener = socket.create_server(("127.0.0.1", 0))
    begin = threading.Thread.start
    raised: list[object] = []

    def begin_late(thread: threading.Thread) -> None:
        listener.close()
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_late)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    EarlyAnswers(listener, reason="choosing plugins").stop()

    assert raised == []


def test_a_silent_client_holds_up_nobody(early, monkeypatch):
    """One that connects and says nothing is not waited for, by others or at the hand-over."""
    monkeypatch.setattr(early_answers, "_PATIENCE_S", 0.25)
    answers, url = early
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
        assert _first_answer(url)[0] == 503
    with socket.create_connection((host, int(port))):
        answers.stop()


@pytest.mark.parametrize(
    ("words", "rest", "file"),
    [
        (["demo"], ["demo"], None),
        (["--trace-startup", "demo"], [f"--trace-startup={TRACE_FILE}", "demo"], TRACE_FILE),
        (["demo", "--trace-startup=a.json"], ["demo", "--trace-startup=a.json"], "a.json"),
    ],
)
def test_a_bare_flag_does_not_take_the_model_for_its_file(words, rest, file):
    """--trace-startup alone means the default file."""
    assert trace_file_of(words) == (rest, file)


def test_the_outline_folds_imports_of_one_package():
    """Steps of 20 ms and more; inside an import only what another package costs; threads apart."""
    spans = [
        Span(name="start", start=0.0, seconds=1.0),
        Span(name="torch", start=0.1, seconds=0.8, category="import"),
        Span(name="torch.nn", start=0.2, seconds=0.3, category="import"),
        Span(name="numpy", start=0.3, seconds=0.1, category="import"),
        Span(name="short", start=0.95, seconds=0.01),
        Span(name="read", start=0.5, seconds=0.2, thread="reader"),
    ]

    assert [(depth, span.name) for depth, span in outline(spans)] == [
        (0, "start"), (1, "torch"), (2, "numpy"), (0, "read"),
    ]  # fmt: skip


def test_plugins_are_summed_by_name():
    """What the ledger of one process tells of each plugin."""
    events = [
        {"process": "core", "event": "loaded", "plugin": "a:x", "facts": {"ms": 2.0}},
        {"process": "core", "event": "hook_called", "plugin": "a:x", "facts": {"ms": 0.5}},
        {"process": "core", "event": "selected", "facts": {"ms": 9.0}},
        {"process": "front end", "event": "loaded", "plugin": "a:x", "facts": {"ms": 7.0}},
    ]

    assert plugin_ms(events, "core") == {"a:x": 2.5}


def test_serve_starts_its_processes_side_by_side_and_traces_them(tiny_opt, tmp_path):
    """TP=2: 503 with a reason first; the workers are those started ahead; the trace has every process."""
    trace, asked = tmp_path / "trace.json", tmp_path / "asked"
    site = Site(tmp_path / "site").write(
        "acme-waits",
        entry_points={"general_plugins": {"waits": "acme_waits:wait"}},
        files={"acme_waits.py": _WAITS.format(asked=str(asked))},
    )
    flags = ["--tensor-parallel-size", "2", f"--trace-startup={trace}"]
    server = Server([str(tiny_opt), *flags], env=site.environment).launch()
    try:
        early = _first_answer(server.base_url)
        asked.touch()
        server.wait_ready()
        output = server.output
        workers = [
            p for p in psutil.Process(server.process.pid).children(recursive=True) if "worker" in p.cmdline()[-5]
        ]
    finally:
        server.stop()

    assert early[0] == 503
    assert early[1]["reason"]
    assert len(workers) == 2
    assert "replaced" not in output
    names = {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "process_name"}
    assert names == {"front end", "engine core", "worker 0", "worker 1"}
    assert "import torch" in output.partition("worker 1 (pid")[2]
    assert "import torch" not in output.partition("front end (pid")[2].partition("worker 0 (pid")[0]
    assert "plugin graftlm:OPTForCausalLM" in output


#: A plugin that lets no start go on before somebody has asked the server.
_WAITS = """
import pathlib, time

def wait():
    while not pathlib.Path({asked!r}).exists():
        time.sleep(0.01)
"""


def _first_answer(url: str) -> tuple[int, dict]:
    for _ in range(1200):
        try:
            return ask(f"{url}/health")
        except (urllib.error.URLError, ConnectionError):  # nobody listens yet, or we were too slow to ask
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


#: Runs before the command does: notes every process that it starts, however short its life.
_NOTES_CHILDREN = """
import subprocess

class Noted(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with open({notes!r}, "a") as notes:
            print(self.pid, file=notes)

subprocess.Popen = Noted
"""


def test_a_refused_start_ends_what_it_started_ahead(tmp_path):
    """The empty children are gone when the command is, and so is the socket's directory."""
    notes, folder = tmp_path / "children", tmp_path / "path"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_NOTES_CHILDREN.format(notes=str(notes)))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    server = Server(["no-such-model"], env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}).launch()

    assert server.process.wait() == 1
    started = [int(pid) for pid in notes.read_text().split()]
    assert started
    assert [pid for pid in started if is_running(pid)] == []
    assert list(tmp_path.glob("graftlm-*")) == []
