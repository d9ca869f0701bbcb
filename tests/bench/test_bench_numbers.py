"""Prompts and statistics of the benchmarks, which anyone must be able to check by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graftlm.cli.bench import SUBCOMMANDS, build_parser, load_subcommand, run
from graftlm.cli.bench.client import Exchange
from graftlm.cli.bench.launch_flags import split_dashes
from graftlm.cli.bench.load import arrival_gaps
from graftlm.cli.bench.prompts import RandomPrompts
from graftlm.cli.bench.report import print_rows
from graftlm.cli.bench.statistics import most_at_once, percentile, spread, summarize
from graftlm.config.arguments import UsageError
from graftlm.processes.shutdown import ShutdownRequest


def exchange(start: float, *arrivals: float, error: str | None = None) -> Exchange:
    return Exchange(start=start, arrivals=list(arrivals), end=arrivals[-1] if arrivals else start, error=error)


def test_percentiles_are_those_of_numpy():
    """Linear interpolation between neighbours."""
    values = [float(x) for x in np.random.default_rng(0).normal(size=101)]

    for percent in (0, 1, 37.5, 50, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert spread([2.0], [99.0]) == {"mean": 2.0, "median": 2.0, "std": 0.0, "p99": 2.0}
    assert spread([], [99.0]) == {}


def test_a_summary_adds_up():
    """Two good requests and a failed one, by hand."""
    good = [exchange(0.0, 0.1, 0.2, 0.4), exchange(0.1, 0.2)]
    summary = summarize(
        [*good, exchange(0.2, error="busy")], duration_s=0.5, percentiles=[50], limits={"ttft": 100.5}
    )

    assert (summary["num_completed"], summary["num_failed"], summary["output_tokens"]) == (2, 1, 4)
    assert summary["output_tokens_per_s"] == pytest.approx(8)
    assert summary["ttft_ms"]["mean"] == pytest.approx(100)
    assert summary["tpot_ms"]["mean"] == pytest.approx(150)
    assert summary["itl_ms"]["p50"] == pytest.approx(150)
    assert summary["e2el_ms"]["mean"] == pytest.approx(250)
    assert summary["goodput"]["share"] == pytest.approx(2 / 3)


def test_concurrency_is_counted_from_the_moments():
    """Three that overlap in pairs are two at once."""
    assert most_at_once([exchange(0, 2), exchange(1, 3), exchange(2, 4)]) == 2


def test_random_prompts_have_their_lengths_and_prefixes():
    """Fixed and drawn lengths, prefixes in turn, the same for the same seed."""
    fixed = RandomPrompts(input_len=10, output_len=4, prefix_len=6, num_prefixes=2).make(4, seed=1)
    drawn = RandomPrompts(input_len=100, output_len=50, range_ratio=0.2).make(200, seed=1)

    assert {(len(p.prompt), p.output_len) for p in fixed} == {(16, 4)}
    assert fixed[0].prompt[:6] == fixed[2].prompt[:6] != fixed[1].prompt[:6] == fixed[3].prompt[:6]
    assert len({tuple(p.prompt) for p in fixed}) == 4
    assert all(80 <= len(p.prompt) <= 120 and 40 <= p.output_len <= 60 for p in drawn)
    assert len({len(p.prompt) for p in drawn}) > 20
    assert RandomPrompts(input_len=10).make(3, seed=5) == RandomPrompts(input_len=10).make(3, seed=5)
    assert all(0 <= token < 300 for p in RandomPrompts(vocab_size=300).make(2, seed=0) for token in p.prompt)


def test_arrivals_have_the_mean_and_the_shape_that_was_asked_for():
    """Poisson gaps are exponential: their deviation equals their mean; burstiness divides its square."""
    for burstiness, shape in ((1.0, 1.0), (4.0, 0.5), (0.25, 2.0)):
        gaps = np.array(list(itertools.islice(arrival_gaps(20.0, burstiness=burstiness, seed=3), 20_000)))
        assert gaps.mean() == pytest.approx(0.05, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(shape, rel=0.05)
    assert next(arrival_gaps(float("inf"), burstiness=1.0, seed=0)) == 0.0


def test_flags_of_the_server_follow_the_dashes():
    """What belongs to `graftlm serve` is not ours to read."""
    assert split_dashes(["demo", "--rounds", "2", "--", "--dtype", "float32"]) == (
        ["demo", "--rounds", "2"], ["--dtype", "float32"],
    )  # fmt: skip
    assert split_dashes(["demo"]) == (["demo"], [])


def test_every_sub_command_is_there():
    """Each has a parser with its own flags, and the help names them all."""
    flags = {name: load_subcommand(name).build_parser().flags() for name in SUBCOMMANDS}

    assert "--request-rate" in flags["serve"]
    assert {"--num-prompts", "--tensor-parallel-size"} <= set(flags["throughput"])
    assert "--num-iters" in flags["latency"]
    assert "--rounds" in flags["startup"]
    assert "--calls" in flags["plugins"]
    assert all(f"  {name} " in build_parser().format_help() for name in SUBCOMMANDS)


def test_a_flag_of_another_sub_command_is_told_whose_it_is():
    """Throughput, latency and startup have much in common, and are easily mistaken."""
    with pytest.raises(UsageError, match=r"^unknown flag --num-iters; `graftlm bench latency` takes it"):
        run(["serve", "--num-iters", "3"], shutdown=ShutdownRequest())


def test_columns_of_words_are_read_from_the_left_and_numbers_from_the_right(capsys):
    """A heading stands above what it heads."""
    print_rows("title", [("a", "x.y", "4,042"), ("bb", "long", "1.2 %")], header=("op", "by", "ns"))

    assert capsys.readouterr().out.splitlines()[1:] == [
        "  op  by       ns",
        "  a   x.y   4,042",
        "  bb  long  1.2 %",
    ]
