"""`make bench`: graftlm serving the demo model, with `transformers` generate beside it in the same run.

Rows: output tokens per second at 1, 8 and 32 streams, time to first token, inter-token latency, cold start
(launch to first token) and memory of all processes (PSS) after one token. Both use all cores, greedy,
distinct 128-token prompts and 128 tokens out; rounds are interleaved, medians are quoted.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import itertools
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.transformers_peer import export
from graftlm.cli.bench.client import ApiClient, run_at_once

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 128
VOCABULARY = 49_152


def make_prompts(count: int, *, seed: int) -> list[list[int]]:
    """Distinct random prompts; ids below 1,000 are left out, special tokens live there."""
    generator = random.Random(seed)
    return [[generator.randrange(1000, VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def memory_mib(pid: int) -> float:
    """PSS of a process and all its children, in MiB."""
    parent = psutil.Process(pid)
    family = [parent, *parent.children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / 2**20


class GraftlmServer:
    """`graftlm serve demo` on a free port of 127.0.0.1."""

    def __init__(self, arguments: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.launched = time.perf_counter()
        command = [sys.executable, "-m", "graftlm", "serve", "demo", "--port", str(self.port), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.cold_start_s = self._wait_for_first_token()
        self.memory_mib = memory_mib(self.process.pid)

    def _wait_for_first_token(self) -> float:
        prompt = make_prompts(1, seed=1)[0][:8]
        body = json.dumps({"model": "demo", "prompt": prompt, "max_tokens": 1}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        while True:
            if self.process.poll() is not None:
                assert self.process.stderr is not None
                raise RuntimeError(f"the server ended: {self.process.stderr.read().decode()[-2000:]}")
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60):
                    return time.perf_counter() - self.launched
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.02)

    def measure(self, prompts: list[list[int]]) -> dict[str, float]:
        bodies: list[dict[str, object]] = [
            {"model": "demo", "prompt": p, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
            for p in prompts
        ]
        client = ApiClient(f"http://127.0.0.1:{self.port}")
        streams, seconds = asyncio.run(run_at_once(client, "/completions", bodies))
        if failed := [stream.error for stream in streams if stream.error is not None]:
            raise RuntimeError(f"{len(failed)} of {len(streams)} requests failed, the first with {failed[0]}")
        gaps = [gap for stream in streams for gap in stream.inter_token_latencies_s]
        return {
            "output tok/s": len(prompts) * OUTPUT_TOKENS / seconds,
            "TTFT ms": 1e3 * statistics.median(s.time_to_first_token_s for s in streams),
            "ITL p50 ms": 1e3 * statistics.median(gaps),
            "ITL p99 ms": 1e3 * statistics.quantiles(gaps, n=100)[98],
        }

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


class TransformersPeer:
    """`transformers` generate in a process of its own."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        launched = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transformers_peer", str(checkpoint), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        )  # fmt: skip
        self._read()
        self._generate(make_prompts(1, seed=1)[0][:8], max_new_tokens=1)
        self.cold_start_s = time.perf_counter() - launched
        self.memory_mib = memory_mib(self.process.pid)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                "the transformers process ended; run `python -m benchmarks.transformers_peer` by hand"
            )
        return json.loads(line)  # type: ignore[no-any-return]

    def _generate(self, *prompts: list[int], max_new_tokens: int) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_new_tokens": max_new_tokens}) + "\n")
        self.process.stdin.flush()
        return self._read()["arrivals"]  # type: ignore[no-any-return]

    def measure(self, prompts: list[list[int]]) -> dict[str, float]:
        arrivals = self._generate(*prompts, max_new_tokens=OUTPUT_TOKENS)
        assert len(arrivals) == OUTPUT_TOKENS, f"expected {OUTPUT_TOKENS} steps, got {len(arrivals)}"
        gaps = [b - a for a, b in itertools.pairwise(arrivals)]
        return {
            "output tok/s": len(prompts) * OUTPUT_TOKENS / arrivals[-1],
            "TTFT ms": 1e3 * arrivals[0],
            "ITL p50 ms": 1e3 * statistics.median(gaps),
            "ITL p99 ms": 1e3 * statistics.quantiles(gaps, n=100)[98],
        }

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@contextlib.contextmanager
def running(*servers: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.close()


def compare(rounds: int, streams: list[int], arguments: list[str]) -> dict[str, Any]:
    """Measure both sides, round by round, and return every figure of every round."""
    from graftlm.models.sources import resolve_model

    checkpoint = Path(tempfile.mkdtemp(prefix="graftlm-bench-"))
    atexit.register(shutil.rmtree, checkpoint, ignore_errors=True)
    export(resolve_model("demo", revision=None, progress=True), checkpoint)
    threads = os.cpu_count() or 1
    import torch
    import transformers

    figures: dict[str, dict[str, list[float]]] = {"graftlm": {}, "transformers": {}}

    def note(side: str, row: str, value: float) -> None:
        figures[side].setdefault(row, []).append(value)

    starts = {
        "graftlm": lambda: GraftlmServer(arguments),
        "transformers": lambda: TransformersPeer(checkpoint, threads),
    }
    for _ in range(rounds - 1):
        for side, start in starts.items():
            server: Any = start()
            with running(server):
                note(side, "cold start s", server.cold_start_s)
                note(side, "memory MiB", server.memory_mib)
    ours = GraftlmServer(arguments)
    with running(ours):
        peer = TransformersPeer(checkpoint, threads)
        with running(peer):
            for side, server in (("graftlm", ours), ("transformers", peer)):
                note(side, "cold start s", server.cold_start_s)
                note(side, "memory MiB", server.memory_mib)
            for count in streams:
                for turn in range(rounds):
                    for side, server in (("graftlm", ours), ("transformers", peer)):
                        prompts = make_prompts(count, seed=1000 * count + 10 * turn + (side == "graftlm"))
                        for name, value in server.measure(prompts).items():
                            note(side, f"{count} streams: {name}", value)
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": threads},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "rounds": rounds,
        "figures": figures,
    }


def print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    cores = result["machine"]["cores"]
    title = f"SmolLM2-135M-Instruct as served by default, transformers in fp32, {cores} cores, median (min…max)"
    table = Table(title=title)
    for column in ("", "graftlm", "transformers", "graftlm is better by"):
        table.add_column(column, justify="left" if not column else "right")
    ours, peer = result["figures"]["graftlm"], result["figures"]["transformers"]
    for row in ours:
        a, b = statistics.median(ours[row]), statistics.median(peer[row])
        ratio = a / b if "tok/s" in row else b / a
        cells = [f"{statistics.median(v):.4g} ({min(v):.4g}…{max(v):.4g})" for v in (ours[row], peer[row])]
        table.add_row(row, *cells, f"{ratio:.2f} ×")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_light", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="also write every figure of every round to this file")
    parser.add_argument("arguments", nargs="*", help="more flags for `graftlm serve`, after --")
    options = parser.parse_args()
    result = compare(options.rounds, options.streams, options.arguments)
    print_table(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
