"""`python -m benchmarks.itl_slo`: how long streams wait for a token while long prompts arrive, and what that costs.

Streams decode; after a moment alone, prompts arrive one every few seconds until the streams have ended, but never
more than two wait. By default and with `--itl-slo`, two servers in turn, round by round. Shown are the usual wait
(the median before the first prompt), p50 and p99 of all waits since then, the p99 as a multiple of both, and the
prompts' time to first token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from typing import Any

from benchmarks.commands import end_servers_when_terminated
from benchmarks.tables import with_spread
from graftlm.cli.bench import report
from graftlm.cli.bench.client import ApiClient, Exchange
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.prompts import Prompt, RandomPrompts, as_body
from graftlm.cli.bench.statistics import percentile
from graftlm.contracts.errors import GraftlmError

_EXTRA = {"temperature": 0, "ignore_eos": True}
_VOCABULARY = 49_152
#: Waits right after the start are not usual: streams still join.
_SETTLING_S = 1.0
#: A machine that cannot keep up is not buried, so that a round ends.
_MOST_UNANSWERED = 2


def prompts_of(count: int, *, input_len: int, output_len: int, seed: int) -> list[Prompt]:
    like = RandomPrompts(input_len=input_len, output_len=output_len, vocab_size=_VOCABULARY)
    return like.make(count, seed=seed)


async def one_round(url: str, options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Load a server and return its figures, times in milliseconds."""
    client = ApiClient(url)
    model = await client.first_model()

    async def send(prompt: Prompt) -> Exchange:
        exchange = await client.stream("/completions", as_body(prompt, model=model, chat=False, extra=_EXTRA))
        if exchange.error is not None:
            raise GraftlmError(f"a request failed: {exchange.error}")
        return exchange

    start = time.perf_counter()
    shape = {"input_len": 16, "output_len": options.tokens}
    streams = [asyncio.create_task(send(p)) for p in prompts_of(options.streams, seed=seed, **shape)]
    newcomers: list[asyncio.Task[Exchange]] = []
    await asyncio.sleep(options.alone)
    first_prompt = time.perf_counter()
    for number in itertools.count():
        if any(task.done() for task in streams):
            break
        if sum(not task.done() for task in newcomers) < _MOST_UNANSWERED:
            (prompt,) = prompts_of(1, input_len=options.prompt, output_len=8, seed=seed + 1 + number)
            newcomers.append(asyncio.create_task(send(prompt)))
        await asyncio.wait(streams, timeout=options.every, return_when=asyncio.FIRST_COMPLETED)
    done = await asyncio.gather(*streams)
    last_stream = max(exchange.end for exchange in done)
    answered = await asyncio.gather(*newcomers)

    waits = [
        (after, 1e3 * (after - before))
        for exchange in done
        for before, after in zip(exchange.arrivals, exchange.arrivals[1:], strict=False)
    ]
    alone = [wait for at, wait in waits if start + _SETTLING_S < at < first_prompt]
    beside = [wait for at, wait in waits if at >= first_prompt]
    if not alone or not beside:
        raise GraftlmError("the streams ended before a prompt came; use more --tokens or less --alone")
    usual, middle, late = percentile(alone, 50), percentile(beside, 50), percentile(beside, 99)
    first = [1e3 * e.time_to_first_token_s for e in answered]
    return {
        "usual wait, ms": usual,
        "ITL p50, ms": middle,
        "ITL p99, ms": late,
        "ITL longest, ms": max(beside),
        "ITL p99 / usual": late / usual,
        "ITL p99 / p50": late / middle,
        "TTFT p50, ms": percentile(first, 50),
        "TTFT longest, ms": max(first),
        "prompts": len(answered),
        "output tok/s of the streams": options.streams * options.tokens / (last_stream - start),
    }


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round, by server; both servers live all the time, and are asked in turn."""
    flags: dict[str, list[str]] = {"default": [], f"--itl-slo {options.slo:g}": [f"--itl-slo={options.slo}"]}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in flags}
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, more in flags.items():
            server = stack.enter_context(LaunchedServer([options.model, *more, *options.arguments]))
            server.wait_for_first_token()
            urls[name] = server.url
        for turn in range(options.rounds + 1):
            for name in sorted(urls, reverse=bool(turn % 2)):
                found = asyncio.run(one_round(urls[name], options, seed=1000 * turn))
                print(f"{'warm-up' if turn == 0 else f'round {turn}'}, {name}: ", end="", flush=True)
                print(" · ".join(f"{title} {value:.4g}" for title, value in found.items()), flush=True)
                if turn:
                    figures[name].append(found)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.itl_slo", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5, help="beside a first one that is not counted")
    parser.add_argument("--slo", type=float, default=1.5, help="of the second server")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1000, help="that each stream gets")
    parser.add_argument("--alone", type=float, default=4.0, help="seconds before the first prompt")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two prompts")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a prompt")
    parser.add_argument("--json", help="also write every figure of every round to this file")
    parser.add_argument("arguments", nargs="*", help="more flags for both servers, after --")
    options = parser.parse_args()
    end_servers_when_terminated()
    stamp: dict[str, Any] = report.stamp("itl_slo", vars(options))
    figures = measure(options)
    report.write_json({**stamp, "figures": figures}, options.json)
    rows = [
        (title, *(with_spread([found[title] for found in rounds]) for rounds in figures.values()))
        for title in next(iter(figures.values()))[0]
    ]
    title = f"{options.streams} streams, a prompt of {options.prompt} tokens every {options.every:g} s"
    report.print_rows(f"{title}, medians (min…max) of {options.rounds}", rows, header=("", *figures))


if __name__ == "__main__":
    main()
