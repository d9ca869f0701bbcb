"""`graftlm bench latency`: the same batch through an engine in this process, again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from graftlm.cli.bench import report, statistics
from graftlm.cli.bench.offline import load_engine, make_offline_parser, random_ids
from graftlm.cli.startup import show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest


def build_parser() -> ArgumentParser:
    parser = make_offline_parser("bench latency", "Seconds of one batch in this process, again and again.")
    add = parser.add_argument
    add("--batch-size", type=int, default=8, metavar="N", help="Prompts at once (default: 8).")
    add("--num-iters", type=int, default=10, metavar="N", help="Batches that count (default: 10).")
    add("--num-iters-warmup", type=int, default=2, metavar="N", help="Batches before (default: 2).")
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    llm, words = load_engine(parser, argv)
    percentiles = statistics.parse_percentiles(words.metric_percentiles)
    with llm:
        if min(words.batch_size, words.num_iters) < 1:
            raise UsageError("--batch-size and --num-iters: use 1 or more")
        seconds = []
        with report.Progress(words.num_iters, "batches", show=not words.no_progress) as bar:
            for turn in range(-words.num_iters_warmup, words.num_iters):
                # Other prompts each time, or the prefix cache would answer.
                prompts, params = random_ids(llm, words, count=words.batch_size, seed=words.seed + 1000 * turn)
                start = time.perf_counter()
                llm.generate(prompts, params, progress=False)
                if turn >= 0:
                    seconds.append(time.perf_counter() - start)
                    bar.advance()
    settings = {k: v for k, v in vars(words).items() if "." not in k and k != "json"}
    result = report.stamp("latency", settings) | {"seconds": seconds, **statistics.spread(seconds, percentiles)}
    report.write_json(result, words.json)
    if words.json != "-":
        rows = [(name, report.number(value)) for name, value in statistics.spread(seconds, percentiles).items()]
        title = f"{llm.config.model.served_model_name[0]}, seconds of a batch of {words.batch_size}"
        report.print_rows(title, rows)
    return 0
