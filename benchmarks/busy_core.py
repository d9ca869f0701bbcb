"""`python -m benchmarks.busy_core`: what is left when another process keeps one of the cores busy.

Rounds are quiet and busy in turn, on one server. In a busy one a process that does nothing but count is pinned to
the last core that this process may use. Shown are throughput and waits of both, the share of the throughput that is
left, and p99 of the waits beside a busy core as a multiple of the usual (the median on a quiet machine).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.commands import end_servers_when_terminated
from benchmarks.tables import with_spread
from graftlm.cli.bench import report
from graftlm.cli.bench.client import ApiClient, run_at_once
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.prompts import RandomPrompts, as_body
from graftlm.cli.bench.statistics import percentile
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.spelling import counted

_BURNER = (
    "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint('pinned', flush=True)\nwhile True: pass"
)
_VOCABULARY = 49_152


@contextlib.contextmanager
def busy(core: int) -> Iterator[None]:
    """Keep a core busy inside the block, with a process that ends with it."""
    command = [sys.executable, "-c", _BURNER, str(core)]
    burner = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert burner.stdout is not None
        if burner.stdout.readline() != b"pinned\n":
            raise GraftlmError(f"no process can be pinned to core {core}")
        yield
    finally:
        burner.kill()
        burner.wait()


def one_round(url: str, *, streams: int, tokens: int, seed: int) -> dict[str, float]:
    """Send distinct prompts of 128 tokens at once and return throughput and waits."""

    async def send() -> dict[str, float]:
        client = ApiClient(url)
        model = await client.first_model()
        prompts = RandomPrompts(input_len=128, output_len=tokens, vocab_size=_VOCABULARY).make(streams, seed=seed)
        extra = {"temperature": 0, "ignore_eos": True}
        bodies = [as_body(prompt, model=model, chat=False, extra=extra) for prompt in prompts]
        exchanges, seconds = await run_at_once(client, "/completions", bodies)
        if failed := [exchange.error for exchange in exchanges if exchange.error is not None]:
            raise GraftlmError(f"{len(failed)} of {streams} requests failed, the first with {failed[0]}")
        waits = [1e3 * wait for exchange in exchanges for wait in exchange.inter_token_latencies_s]
        return {
            "output tok/s": sum(exchange.output_tokens for exchange in exchanges) / seconds,
            "ITL p50, ms": percentile(waits, 50),
            "ITL p99, ms": percentile(waits, 99),
            "ITL longest, ms": max(waits),
        }

    return asyncio.run(send())


def measure(options: argparse.Namespace) -> dict[int, dict[str, list[dict[str, float]]]]:
    """Return the figures of each round, by number of streams and state of the core."""
    core = options.core if options.core is not None else max(os.sched_getaffinity(0))
    figures: dict[int, dict[str, list[dict[str, float]]]] = {}
    with LaunchedServer([options.model, *options.arguments]) as server:
        server.wait_for_first_token()
        for streams in options.streams:
            found = figures[streams] = {"quiet": [], "busy": []}
            one_round(server.url, streams=streams, tokens=16, seed=7)  # whatever is made on first use
            for turn in range(options.rounds):
                for state in ("quiet", "busy"):
                    with busy(core) if state == "busy" else contextlib.nullcontext():
                        time.sleep(0.2)
                        seed = 1000 * streams + 2 * turn + (state == "busy")
                        found[state].append(
                            one_round(server.url, streams=streams, tokens=options.tokens, seed=seed)
                        )
                words = " · ".join(f"{title} {found[state][-1][title]:.4g}" for title in found[state][-1])
                print(f"{counted(streams, 'stream')}, round {turn + 1}, busy: {words}", flush=True)
    return figures


def rows_of(found: dict[str, list[dict[str, float]]]) -> list[tuple[str, str, str]]:
    """Return what is shown of one number of streams: figures of both states, and what they are to each other."""
    quiet, beside = found["quiet"], found["busy"]
    rows = [
        (title, with_spread([r[title] for r in quiet]), with_spread([r[title] for r in beside]))
        for title in quiet[0]
    ]
    pairs = list(zip(quiet, beside, strict=True))
    left = [b["output tok/s"] / q["output tok/s"] for q, b in pairs]
    late = [b["ITL p99, ms"] / q["ITL p50, ms"] for q, b in pairs]
    rows.append(("throughput left", "", with_spread(left)))
    rows.append(
        ("ITL p99 / usual", with_spread([q["ITL p99, ms"] / q["ITL p50, ms"] for q in quiet]), with_spread(late))
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy_core", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=256, help="that each stream gets")
    parser.add_argument("--core", type=int, help="to keep busy (default: the last)")
    parser.add_argument("--json", help="also write every figure of every round to this file")
    parser.add_argument("arguments", nargs="*", help="more flags for the server, after --")
    options = parser.parse_args()
    end_servers_when_terminated()
    stamp: dict[str, Any] = report.stamp("busy_core", vars(options))
    figures = measure(options)
    report.write_json({**stamp, "figures": figures}, options.json)
    for streams, found in figures.items():
        report.print_rows(
            f"{counted(streams, 'stream')}, medians (min…max) of {options.rounds}", rows_of(found),
            header=("", "quiet", "one core busy"),
        )  # fmt: skip


if __name__ == "__main__":
    main()
