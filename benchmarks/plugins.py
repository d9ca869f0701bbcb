"""The second part of `make bench`: what installed plugin packages cost, with 0, 1 and 100 of them.

Rows: nanoseconds that a call through an op object adds to its method, milliseconds from the launch of
`graftlm serve` to READY (two tiny layers, so that little else is measured), and of them those of discovery. Idle
packages publish an architecture that nobody asks for; active ones have a general plugin, which registers one in
every process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.plugins import op_costs
from graftlm.cli.bench.report import print_rows
from graftlm.testing import tiny_llama

SITUATIONS = (("none", 0, False), ("1 idle", 1, False), ("1 active", 1, True), ("100 idle", 100, False),
              ("100 active", 100, True))  # fmt: skip


def write_packages(folder: Path, count: int, *, active: bool) -> None:
    """Install `count` packages into `folder`, as metadata and one module each."""
    for i in range(count):
        name = f"bench_plugin_{i}"
        (folder / f"{name}.py").write_text(
            "def register():\n    from graftlm.models import ModelRegistry\n\n"
            f"    ModelRegistry.register_model('Bench{i}ForCausalLM', 'graftlm.models.llama:LlamaForCausalLM')\n"
        )
        lines = f"[graftlm.models]\nIdle{i}ForCausalLM = graftlm.models.llama:LlamaForCausalLM\n"
        if active:
            lines = f"[graftlm.general_plugins]\nbench_{i} = {name}:register\n"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(lines)
        (info / "RECORD").write_text(f"{name}.py,,\n")


@contextlib.contextmanager
def installed(count: int, *, active: bool) -> Iterator[None]:
    """Let every process that is started inside the block find the packages."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder:
        write_packages(Path(folder), count, active=active)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before


def start_once(checkpoint: Path) -> tuple[float, float]:
    """Return milliseconds to READY, and those of discovery in the front end."""
    with LaunchedServer([str(checkpoint)]) as server:
        ready = 1e3 * server.wait_for_first_token().ready_s
        events = server.get("/plugins?events=true")["events"]
    (discovered,) = [event["facts"]["ms"] for event in events if event["event"] == "discovered"]
    return ready, discovered


def measure(rounds: int, calls: int) -> dict[str, dict[str, list[float]]]:
    """Return every figure of every round; rounds are interleaved, so that a busy moment hits all alike."""
    rows = ("op call ns", "start ms", "discovery ms")
    figures: dict[str, dict[str, list[float]]] = {name: {row: [] for row in rows} for name, *_ in SITUATIONS}
    with tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder:
        checkpoint = tiny_llama().write(Path(folder) / "tiny-llama")
        for _ in range(rounds):
            for name, count, active in SITUATIONS:
                with installed(count, active=active):
                    figures[name]["op call ns"].append(float(op_costs(calls)["dispatch_ns"]))
                    ready, discovery = start_once(checkpoint)
                figures[name]["start ms"].append(ready)
                figures[name]["discovery ms"].append(discovery)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plugins", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=20_000, help="calls through an op object")
    parser.add_argument("--json", type=Path, help="also write every figure of every round to this file")
    options = parser.parse_args()
    figures = measure(options.rounds, options.calls)
    middle = {name: {row: statistics.median(v) for row, v in rows.items()} for name, rows in figures.items()}
    base = middle["none"]["start ms"]
    table = [
        (name, f"{rows['op call ns']:.0f}", f"{rows['start ms']:.0f}", f"{rows['start ms'] - base:+.0f}",
         f"{rows['discovery ms']:.1f}")
        for name, rows in middle.items()
    ]  # fmt: skip
    header = ("installed plugins", "ns per op call", "start ms", "more", "discovery ms")
    print_rows("what plugins cost, medians", table, header=header)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
