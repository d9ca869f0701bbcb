from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


def graftlm(*words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graftlm", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["serve", "no-such-model"], 1, ["'no-such-model'", "not found"]),
        (["serve", "--max-model-length", "8"], 2, ["--max-model-length", "--max-model-len"]),
        (["serve", "--port", "70000"], 1, ["--port=70000", "0 to 65535"]),
        (["serve", "--plugins", "no-such-plugin"], 1, ["no-such-plugin", "graftlm plugins"]),
        (["serve", "--platform", "cqu"], 1, ["cqu", "cpu"]),
        (["serve", "--config", "no-such.yaml"], 1, ["no-such.yaml", "no such file"]),
        (["serve", "--log-level", "lout"], 1, ["--log-level='lout'"]),
        (["fetch"], 2, ["graftlm fetch demo"]),
    ],
)
def test_bad_input_is_one_clear_line(words, code, parts, tmp_path):
    """Value and cure, no traceback, and no process left behind."""
    done = graftlm(*words)

    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("graftlm: error: ")
    assert all(part in last for part in parts)
    assert "Traceback" not in done.stderr


@pytest.mark.demo
def test_a_tensor_parallel_size_that_does_not_divide_is_refused_before_any_process_starts(demo_path):
    """9 and 3 heads cannot be shared by 2 workers."""
    done = graftlm("serve", str(demo_path), "--tensor-parallel-size", "2", "--log-level", "debug")

    assert done.returncode == 1
    assert all(
        part in done.stderr for part in ("9 attention heads", "3 key-value heads", "sizes that divide: 1, 3")
    )
    assert "engine core started" not in done.stderr


def test_a_port_in_use_is_named(tiny_llama):
    """The port is refused before a model is looked for, not to speak of fetched."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        for model in (str(tiny_llama), "no-such-model"):
            done = graftlm("serve", model, "--port", str(port))

            assert done.returncode == 1
            assert str(port) in done.stderr.splitlines()[-1]
            assert "Traceback" not in done.stderr and "Resolved architecture" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("after_s", [0, 0.35, 1.35])
def test_a_signal_during_the_start_ends_everything_with_code_0(tiny_llama, number, after_s):
    """Whatever the start was busy with: no traceback, no process left, exit code 0."""
    words = [sys.executable, "-m", "graftlm", "serve", str(tiny_llama), "--port", "0"]
    server = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    while not _catches(server.pid, signal.SIGTERM):  # before, the signal is the interpreter's own to answer
        time.sleep(0.01)
    time.sleep(after_s)

    server.send_signal(number)
    output, _ = server.communicate(timeout=60)

    assert server.returncode == 0, output
    assert "Traceback" not in output
    with pytest.raises(ProcessLookupError):  # the session's group is empty
        for _ in range(600):
            os.killpg(server.pid, 0)
            time.sleep(0.05)


def _catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler of its own for a signal."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def test_the_processes_of_a_server_import_torch_only_where_tensors_are(tiny_llama, graftlm_server):
    """The role matrix of a running server with two workers, read from the libraries that each process mapped."""
    server = graftlm_server(str(tiny_llama), "--tensor-parallel-size", "2")

    torch_in = {name: "libtorch" in maps for name, maps in _processes(server.process.pid).items()}

    assert torch_in.pop("front end") is False
    assert torch_in.pop("engine core") is False
    assert list(torch_in.values()) == [True, True]


def _processes(pid: int) -> dict[str, str]:
    """Map the front end and its descendants, by what started them, to the files they have mapped."""
    core = _children(pid)
    assert len(core) == 1, core
    workers = _children(core[0])
    named = {"front end": pid, "engine core": core[0]} | {f"worker {i}": p for i, p in enumerate(workers)}
    return {name: Path(f"/proc/{p}/maps").read_text() for name, p in named.items()}


def _children(pid: int) -> list[int]:
    return sorted(child.pid for child in psutil.Process(pid).children())
