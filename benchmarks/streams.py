"""`python -m benchmarks.streams`: what a token costs from 1 stream to 64, and whether long contexts leave a trace.

Cost per token is the time of a load divided by its output tokens, and, of decoding alone, the median time between
two tokens divided by the streams. Numbers of streams are measured in turn, round by round.

Then many streams of long contexts, twice, on a server without a prefix cache, which would keep what it has seen as
long as there is room: all must be served, no block of the KV cache may be left in use, and the second time may not
take more memory than the first did (PSS of all processes, in MiB).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import urllib.request
from typing import Any

from benchmarks.commands import end_servers_when_terminated
from benchmarks.peer import memory_mib
from benchmarks.tables import with_spread
from graftlm.cli.bench import report
from graftlm.cli.bench.client import ApiClient, Exchange, run_at_once
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.prompts import RandomPrompts, as_body
from graftlm.cli.bench.statistics import percentile
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.spelling import counted

_VOCABULARY = 49_152


def send(server: LaunchedServer, like: RandomPrompts, *, streams: int, seed: int) -> tuple[list[Exchange], float]:
    """Send distinct prompts at once; raises GraftlmError when one of them fails."""

    async def send_all() -> tuple[list[Exchange], float]:
        client = ApiClient(server.url)
        model = await client.first_model()
        extra = {"temperature": 0, "ignore_eos": True}
        bodies = [as_body(p, model=model, chat=False, extra=extra) for p in like.make(streams, seed=seed)]
        return await run_at_once(client, "/completions", bodies)

    exchanges, seconds = asyncio.run(send_all())
    if failed := [exchange.error for exchange in exchanges if exchange.error is not None]:
        raise GraftlmError(f"{len(failed)} of {streams} requests failed, the first with {failed[0]}")
    return exchanges, seconds


def measure_costs(server: LaunchedServer, options: argparse.Namespace) -> dict[int, list[dict[str, float]]]:
    """Return the figures of each round, by number of streams."""
    like = RandomPrompts(input_len=128, output_len=options.tokens, vocab_size=_VOCABULARY)
    warm = RandomPrompts(input_len=16, output_len=8, vocab_size=_VOCABULARY)
    figures: dict[int, list[dict[str, float]]] = {streams: [] for streams in options.streams}
    for turn in range(options.rounds):
        for streams in options.streams:
            send(server, warm, streams=streams, seed=10_000 * turn + streams)
            exchanges, seconds = send(server, like, streams=streams, seed=1 + 10_000 * turn + streams)
            waits = [1e3 * wait for exchange in exchanges for wait in exchange.inter_token_latencies_s]
            tokens = sum(exchange.output_tokens for exchange in exchanges)
            found = {
                "ms per token": 1e3 * seconds / tokens,
                "ms per token, decoding": percentile(waits, 50) / streams,
                "output tok/s": tokens / seconds,
                "ITL p50, ms": percentile(waits, 50),
                "ITL p99 / p50": percentile(waits, 99) / percentile(waits, 50),
            }
            words = " · ".join(f"{title} {value:.4g}" for title, value in found.items())
            print(f"round {turn + 1}, {counted(streams, 'stream')}: {words}", flush=True)
            figures[streams].append(found)
    return figures


def measure_long_contexts(server: LaunchedServer, options: argparse.Namespace) -> list[dict[str, float]]:
    """Serve the long contexts twice."""
    like = RandomPrompts(input_len=options.context, output_len=options.long_tokens, vocab_size=_VOCABULARY)
    found = []
    for turn in range(2):
        before = memory_mib(server.process.pid)
        _, seconds = send(server, like, streams=options.long_streams, seed=77 + turn)
        after = memory_mib(server.process.pid)
        metrics = read_metrics(server.url)
        found.append(
            {
                "seconds": seconds,
                "PSS before, MiB": before,
                "PSS after, MiB": after,
                "preemptions so far": metrics["preemptions"],
                "KV cache in use after": metrics["kv_cache_usage_perc"],
            }
        )
        words = " · ".join(f"{title} {value:.4g}" for title, value in found[-1].items())
        print(f"{options.long_streams} × {options.context} tokens, time {turn + 1}: {words}", flush=True)
    return found


def read_metrics(url: str) -> dict[str, float]:
    """Return the two numbers that matter here, by their names without what stands before them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = {}
    for name in ("preemptions", "kv_cache_usage_perc"):
        values = re.findall(rf"^\S*[:_]{name}(?:_total)?(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise GraftlmError(f"{url}/metrics has no {name}")
        found[name] = float(values[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=int, default=128, help="that each stream gets")
    parser.add_argument("--long-streams", type=int, default=64, help="with long contexts; 0: none")
    parser.add_argument("--context", type=int, default=2000, help="tokens of a long context")
    parser.add_argument("--long-tokens", type=int, default=32, help="that each stream with a long context gets")
    parser.add_argument("--json", help="also write every figure of every round to this file")
    parser.add_argument("arguments", nargs="*", help="more flags for the server, after --")
    options = parser.parse_args()
    end_servers_when_terminated()
    stamp: dict[str, Any] = report.stamp("streams", vars(options))
    figures: dict[int, list[dict[str, float]]] = {}
    long: list[dict[str, float]] = []
    if options.streams:
        with LaunchedServer([options.model, *options.arguments]) as server:
            server.wait_for_first_token()
            figures = measure_costs(server, options)
    if options.long_streams:
        with LaunchedServer([options.model, "--no-enable-prefix-caching", *options.arguments]) as server:
            server.wait_for_first_token()
            long = measure_long_contexts(server, options)
    report.write_json({**stamp, "figures": figures, "long_contexts": long}, options.json)
    titles = list(next(iter(figures.values()))[0]) if figures else []
    rows = [
        (str(streams), *(with_spread([found[title] for found in rounds]) for title in titles))
        for streams, rounds in figures.items()
    ]
    if rows:
        report.print_rows(f"medians (min…max) of {options.rounds}", rows, header=("streams", *titles))
    if long:
        grown = long[1]["PSS after, MiB"] - long[0]["PSS after, MiB"]
        in_use = long[-1]["KV cache in use after"]
        print(
            f"{counted(options.long_streams, 'stream')} of {options.context} tokens: all served twice; memory "
            f"changed by {grown:+.1f} MiB the second time; {100 * in_use:.1f} % of the KV cache in use after it"
        )


if __name__ == "__main__":
    main()
