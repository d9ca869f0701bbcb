"""`graftlm bench serve`: loads a running server through the OpenAI API and says what its users would have seen.

It works with any server that streams completions or chats, and knows nothing of the engine behind one.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import time
from typing import TYPE_CHECKING, Any

from graftlm.cli.bench import report, statistics
from graftlm.cli.bench.client import ApiClient, Exchange, ServerTrouble
from graftlm.cli.bench.load import arrival_gaps, run_load
from graftlm.cli.bench.prompts import Prompt, RandomPrompts, as_body, read_prompts
from graftlm.cli.startup import make_parser, show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.config.environment import get
from graftlm.config.options import parse_json_object

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

#: Words of the command line that are no settings of the load.
_PRIVATE = ("api_key", "json", "no_progress", "plot")
#: By endpoint; what all chats begin with is the template's.
_USUAL_SHARE_OF_CACHE = {"completions": 0.1, "chat": 0.5}
ROUTES = {"completions": "/completions", "chat": "/chat/completions"}


def build_parser() -> ArgumentParser:
    parser = make_parser("bench serve", "Load a running server and measure what its users see.")
    add = parser.add_argument
    add("--url", "--base-url", default="http://127.0.0.1:8000", help="The server (default: http://127.0.0.1:8000).")
    add("--model", help="Model to ask for (default: the first that the server names).")
    add("--api-key", metavar="KEY", help="Key of the server (or GRAFTLM_API_KEY).")
    add("--endpoint", choices=list(ROUTES), default="completions", help="API to use (default: completions).")
    add("--num-prompts", type=int, default=100, metavar="N", help="Requests to send (default: 100).")
    add("--num-warmups", type=int, default=4, metavar="N", help="Requests sent before, not counted (default: 4).")
    add("--request-rate", type=float, default=float("inf"), metavar="X",
        help="Requests per second, arriving as a Poisson process (default: all at once).")  # fmt: skip
    add("--burstiness", type=float, default=1.0, metavar="X",
        help="Shape of the arrivals: below 1 burstier, above 1 more even (default: 1, Poisson).")  # fmt: skip
    add("--max-concurrency", type=int, metavar="N", help="Most requests under way at once (default: no limit).")
    add_lengths(parser)
    add("--random-prefix-len", type=int, default=0, metavar="N", help="Tokens that prompts begin with in common.")
    add("--num-prefixes", type=int, default=1, metavar="N", help="How many such beginnings there are (default: 1).")
    add("--dataset-path", metavar="FILE", help="JSON lines with prompt or messages, instead of random prompts.")
    add("--prompt-format", choices=("ids", "text"),
        help="Random prompts as ids, of exact length, or as words (default: ids; chats take text).")  # fmt: skip
    add("--vocab-size", type=int, default=32_000, metavar="N", help="Ids are drawn below this (default: 32000).")
    add("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0).")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=True,
        help="Ask for exactly the output length, where the server knows this parameter (default: on).")  # fmt: skip
    add("--extra-body", default="{}", metavar="JSON", help="More parameters of every request.")
    add("--goodput", nargs="+", default=[], metavar="METRIC:MS",
        help="Count requests within limits, such as ttft:500 tpot:60 e2el:9000.")  # fmt: skip
    add_output_flags(parser)
    add(
        "--plot",
        metavar="FILE",
        help="Also draw the latency distributions as .png, .svg or .pdf (needs matplotlib).",
    )
    return parser


def add_lengths(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--random-input-len", "--input-len", type=int, default=128, metavar="N", dest="input_len",
        help="Tokens of a prompt (default: 128).")  # fmt: skip
    add("--random-output-len", "--output-len", type=int, default=128, metavar="N", dest="output_len",
        help="Tokens of an answer (default: 128).")  # fmt: skip
    add("--random-range-ratio", type=float, default=0.0, metavar="X", dest="range_ratio",
        help="Draw each length from N times 1-X to N times 1+X (default: 0, fixed).")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="Of prompts, lengths and arrivals (default: 0).")


def add_output_flags(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--metric-percentiles",
        default="90,99",
        metavar="LIST",
        help="Percentiles shown (default: 90,99, beside the median).",
    )
    add("--json", metavar="FILE", help="Also write everything as JSON; - is standard output.")
    add("--no-progress", "--disable-tqdm", action="store_true", help="Show no progress bar.")


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words = parser.parse_strictly(argv)
    check(words)
    result, exchanges = asyncio.run(measure(words))
    report.write_json(result, words.json)
    if words.plot is not None:
        from graftlm.cli.bench.plot import write_plot

        write_plot(words.plot, result, statistics.values_ms(exchanges))
    if words.json != "-":
        print_result(result)
    return 0


def check(words: argparse.Namespace) -> None:
    """Refuse what makes no load."""
    for name in ("num_prompts", "input_len", "output_len", "num_prefixes"):
        if getattr(words, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}={getattr(words, name)}: use 1 or more")
    for name in ("request_rate", "burstiness"):
        if not getattr(words, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')}={getattr(words, name)}: use more than 0")
    if words.max_concurrency is not None and words.max_concurrency < 1:
        raise UsageError(f"--max-concurrency={words.max_concurrency}: use 1 or more, or leave it out")
    if not 0 <= words.range_ratio <= 1:
        raise UsageError(f"--random-range-ratio={words.range_ratio}: use 0 to 1")
    if words.endpoint == "chat" and words.prompt_format == "ids":
        raise UsageError("--prompt-format=ids: a chat takes text; leave it out")
    if words.plot is not None:
        from graftlm.cli.bench.plot import check_plot

        check_plot(words.plot)


async def measure(words: argparse.Namespace) -> tuple[dict[str, Any], list[Exchange]]:
    """Send the load; return the result, and the exchanges that did not fail."""
    percentiles = statistics.parse_percentiles(words.metric_percentiles)
    limits = statistics.parse_limits(words.goodput)
    client = ApiClient(words.url, api_key=words.api_key or get("GRAFTLM_API_KEY"))
    model = words.model or await client.first_model()
    prompts = make_prompts(words)
    extra = {"temperature": words.temperature, **parse_json_object(words.extra_body)}
    if words.ignore_eos:
        extra["ignore_eos"] = True
    chat = words.endpoint == "chat"
    calls = [
        functools.partial(client.stream, ROUTES[words.endpoint], as_body(p, model=model, chat=chat, extra=extra))
        for p in prompts
    ]
    warmups, calls = calls[: words.num_warmups], calls[words.num_warmups :]
    settings = {key: value for key, value in vars(words).items() if key not in _PRIVATE}
    settings["request_rate"] = None if words.request_rate == float("inf") else words.request_rate
    result = report.stamp("serve", {**settings, "model": model})
    if warmups:
        done, _ = await run_load(
            warmups, gaps=itertools.repeat(0.0), max_concurrency=words.max_concurrency, on_done=lambda _: None
        )
        _stop_if_all_failed(words.url, done)
    with report.Progress(len(calls), "requests", show=not words.no_progress) as bar:
        cpu = time.process_time()
        exchanges, duration_s = await run_load(
            calls,
            gaps=arrival_gaps(words.request_rate, burstiness=words.burstiness, seed=words.seed),
            max_concurrency=words.max_concurrency,
            on_done=bar.advance,
        )
        cpu = time.process_time() - cpu
    _stop_if_all_failed(words.url, exchanges)
    summary = statistics.summarize(exchanges, duration_s=duration_s, percentiles=percentiles, limits=limits)
    good = [exchange for exchange in exchanges if exchange.error is None]
    return {**result, **summary, "client_cpu_share": cpu / duration_s}, good


def make_prompts(words: argparse.Namespace) -> list[Prompt]:
    """Return the prompts of warm-up and load."""
    chat, count = words.endpoint == "chat", words.num_warmups + words.num_prompts
    if words.dataset_path is not None:
        return read_prompts(words.dataset_path, count=count, output_len=words.output_len, chat=chat)
    like = RandomPrompts(
        input_len=words.input_len,
        output_len=words.output_len,
        range_ratio=words.range_ratio,
        prefix_len=words.random_prefix_len,
        num_prefixes=words.num_prefixes,
        vocab_size=words.vocab_size,
        as_text=chat or words.prompt_format == "text",
    )
    return like.make(count, seed=words.seed)


def _stop_if_all_failed(url: str, exchanges: list[Exchange]) -> None:
    if exchanges and all(exchange.error is not None for exchange in exchanges):
        raise ServerTrouble(
            url, problem=f"all {len(exchanges)} requests failed, the first with {exchanges[0].error}"
        )


def _without_usage(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Tell of answers whose tokens the server did not count: their prompts count as 0, their pieces as tokens."""
    count = result["num_without_usage"]
    return [("answers without usage: pieces counted", f"{count}")] if count else []


def print_result(result: dict[str, Any]) -> None:
    number = report.number
    rows = [
        ("requests completed", f"{result['num_completed']}"),
        ("requests failed", f"{result['num_failed']}"),
        ("duration, s", number(result["duration_s"])),
        ("most requests at once", f"{result['max_concurrency_seen']}"),
        ("prompt tokens", f"{result['prompt_tokens']:,}"),
        ("  of them cached", f"{result['cached_prompt_tokens']:,}"),
        ("output tokens", f"{result['output_tokens']:,}"),
        *_without_usage(result),
        ("requests per second", number(result["requests_per_s"])),
        ("output tokens per second", number(result["output_tokens_per_s"])),
        ("total tokens per second", number(result["total_tokens_per_s"])),
    ]
    if goodput := result.get("goodput"):
        limits = ", ".join(f"{metric} ≤ {ms:g} ms" for metric, ms in goodput["limits_ms"].items())
        rows.append((f"goodput, requests per second ({limits})", number(goodput["requests_per_s"])))
        rows.append(("  share of all requests", f"{100 * goodput['share']:.1f} %"))
    rows.append(("cost of this client, of one core", f"{100 * result['client_cpu_share']:.1f} %"))
    report.print_rows(f"\n{result['settings']['model']} at {result['settings']['url']}", rows)
    shown = {name: result[f"{name}_ms"] for name in statistics.METRICS if result[f"{name}_ms"]}
    columns = list(next(iter(shown.values()), {}))
    table = [(statistics.METRICS[name], *(number(values[c]) for c in columns)) for name, values in shown.items()]
    report.print_rows("\nmilliseconds", table, header=("", *columns))
    for error in result["errors"]:
        print(f"\nfailed: {error}")
    if advice := advice_on_cache(result):
        print(f"\nadvice: {advice}")


def advice_on_cache(result: dict[str, Any]) -> str:
    """Say that prompts which share nothing came from the prefix cache all the same, or ""."""
    settings, prompt_tokens = result["settings"], result["prompt_tokens"]
    if settings["dataset_path"] is not None or settings["random_prefix_len"] or not prompt_tokens:
        return ""
    share = result["cached_prompt_tokens"] / prompt_tokens
    if share <= _USUAL_SHARE_OF_CACHE[settings["endpoint"]]:
        return ""
    return (
        f"{100 * share:.0f} % of the prompt tokens came from the cache: this server has seen these prompts before; "
        f"give another --seed than {settings['seed']}, or restart it"
    )
