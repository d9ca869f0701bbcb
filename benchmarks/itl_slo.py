"""`python -m benchmarks.itl_slo`: how long streams wait for a token while long prompts arrive, and what that costs.

Streams decode; after a moment alone, prompts arrive one every few seconds until the streams have ended, but
never more than two wait. By default and with `--itl-slo`, two servers in turn, round by round. Since a token of
a longer context takes longer, the usual wait for a stream's k-th token is the median of those around it in a
round of streams without prompts. Shown are p50 and p99 of all waits since the first prompt, the p99 as a
multiple of that p50, the p99 of the waits as multiples of the usual ones, and the prompts' time to first token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
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
from graftlm.plugins.spelling import counted

_EXTRA = {"temperature": 0, "ignore_eos": True}
_VOCABULARY = 49_152
#: So many tokens before and after one tell its usual wait.
_AROUND = 10
#: A machine that cannot keep up is not buried, so that a round ends.
_MOST_UNANSWERED = 2


def prompts_of(count: int, *, input_len: int, output_len: int, seed: int) -> list[Prompt]:
    like = RandomPrompts(input_len=input_len, output_len=output_len, vocab_size=_VOCABULARY)
    return like.make(count, seed=seed)


class Client:
    """Sends prompts to one server."""

    def __init__(self, url: str) -> None:
        self._api = ApiClient(url)

    async def send(self, prompt: Prompt) -> Exchange:
        body = as_body(prompt, model=await self._api.first_model(), chat=False, extra=_EXTRA)
        exchange = await self._api.stream("/completions", body)
        if exchange.error is not None:
            raise GraftlmError(f"a request failed: {exchange.error}")
        return exchange

    def start_streams(self, options: argparse.Namespace, seed: int) -> list[asyncio.Task[Exchange]]:
        prompts = prompts_of(options.streams, input_len=16, output_len=options.tokens, seed=seed)
        return [asyncio.create_task(self.send(prompt)) for prompt in prompts]


def waits_of(exchange: Exchange) -> list[tuple[float, float]]:
    """Return each token but the first: when it came, and the milliseconds since the one before."""
    return [(after, 1e3 * (after - before)) for before, after in itertools.pairwise(exchange.arrivals)]


async def usual_waits(url: str, options: argparse.Namespace, seed: int) -> list[float]:
    """Return the usual milliseconds before each token, of streams that nobody disturbs.

    A token whose text is not whole comes with the next one: such a stream has fewer waits than others.
    """
    done = await asyncio.gather(*Client(url).start_streams(options, seed))
    of_streams = [[wait for _, wait in waits_of(exchange)] for exchange in done]
    by_place = [[waits[k] for waits in of_streams if k < len(waits)] for k in range(max(map(len, of_streams)))]
    around = [by_place[max(0, k - _AROUND) : k + _AROUND + 1] for k in range(len(by_place))]
    return [statistics.median(itertools.chain.from_iterable(near)) for near in around]


async def one_round(url: str, options: argparse.Namespace, seed: int, usual: list[float]) -> dict[str, float]:
    """Load a server and return its figures, times in milliseconds."""
    client = Client(url)
    start = time.perf_counter()
    streams = client.start_streams(options, seed)
    newcomers: list[asyncio.Task[Exchange]] = []
    await asyncio.sleep(options.alone)
    first_prompt = time.perf_counter()
    for number in itertools.count():
        if any(task.done() for task in streams):
            break
        if sum(not task.done() for task in newcomers) < _MOST_UNANSWERED:
            (prompt,) = prompts_of(1, input_len=options.prompt, output_len=8, seed=seed + 2 + number)
            newcomers.append(asyncio.create_task(client.send(prompt)))
        await asyncio.wait(streams, timeout=options.every, return_when=asyncio.FIRST_COMPLETED)
    done = await asyncio.gather(*streams)
    last_stream = max(exchange.end for exchange in done)
    answered = await asyncio.gather(*newcomers)

    beside = [
        (wait, wait / usual[min(k, len(usual) - 1)])
        for exchange in done
        for k, (at, wait) in enumerate(waits_of(exchange))
        if at >= first_prompt
    ]
    if not beside:
        raise GraftlmError("the streams ended before a prompt came; use more --tokens or less --alone")
    waits = [wait for wait, _ in beside]
    middle, late = percentile(waits, 50), percentile(waits, 99)
    first = [1e3 * e.time_to_first_token_s for e in answered]
    return {
        "usual wait, ms": statistics.median(usual),
        "ITL p50, ms": middle,
        "ITL p99, ms": late,
        "ITL longest, ms": max(waits),
        "ITL p99 / p50": late / middle,
        "p99 of ITL / usual": percentile([multiple for _, multiple in beside], 99),
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
                seed = 1000 * turn
                usual = asyncio.run(usual_waits(urls[name], options, seed))
                found = asyncio.run(one_round(urls[name], options, seed + 1, usual))
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
    title = f"{counted(options.streams, 'stream')}, a prompt of {options.prompt} tokens every {options.every:g} s"
    report.print_rows(f"{title}, medians (min…max) of {options.rounds}", rows, header=("", *figures))


if __name__ == "__main__":
    main()
