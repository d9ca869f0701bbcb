"""The benchmark of integer matrices runs and tells what it measured; what it measures is nobody's business here."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "kernels" / "bench.py"


def test_each_call_stands_beside_the_ceiling_of_its_path(tmp_path):
    """Every path and width of activations has a ceiling, every call a share of it, in table and JSON."""
    words = ["linear", "--shapes", "32x64", "--rows", "1", "5", "--formats", "Q4_1", "Q8_0", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, str(BENCH), *words, "--budget-s", "0", "--json", str(tmp_path / "found.json")],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())

    ceilings = {(one["path"], one["activations"]): one for one in found["ceilings"]}
    paths = {path for path, _ in ceilings}
    assert "generic" in paths
    assert all(one["gop_per_s"] > 0 and one["gb_per_s"] > 0 for one in ceilings.values())
    # Q4_1 with activations in 16 bits and in 8, Q8_0 in 16, each with one row and with five.
    assert len(found["calls"]) == 6 * len(paths)
    for call in found["calls"]:
        ceiling = ceilings[call["path"], call["activations"]]
        products = call["gop_per_s"] / ceiling["gop_per_s"]
        memory = call["gb_per_s"] / ceiling["gb_per_s"]
        assert abs(call["share"] - max(products, memory)) < 1e-6
        assert call["bound"] == ("memory" if memory > products else "products")
    assert done.stdout.count(" x 64 ") == len(found["calls"])


def test_a_call_that_takes_no_longer_than_none_has_figures_too(path, monkeypatch, tmp_path, capsys):
    """The few rows of a tiny matrix may take as long as no row, or less: what is left is a step of the clock."""
    monkeypatch.syspath_prepend(BENCH.parent)
    bench_linear = importlib.import_module("bench_linear")
    monkeypatch.setattr(bench_linear, "_ceilings", {})
    times = itertools.chain(
        [1e-3] * 7, itertools.cycle([2e-6, 3e-6])
    )  # a ceiling, then calls with rows and without
    monkeypatch.setattr(bench_linear, "best_seconds", lambda *_, **__: next(times))
    words = ["--shapes", "32x64", "--rows", "1", "5", "--formats", "Q8_0", "--threads", "1", "--paths", path]

    bench_linear.main([*words, "--json", str(tmp_path / "found.json")])

    calls = json.loads((tmp_path / "found.json").read_text())["calls"]
    assert len(calls) == 2
    assert all(0 < call["microseconds"] <= 1e6 * bench_linear.CLOCK_STEP for call in calls)
    assert capsys.readouterr().out.count(" x 64 ") == 2
