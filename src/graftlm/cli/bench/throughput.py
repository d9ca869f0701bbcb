"""`graftlm bench throughput`: all prompts at once through an engine in this process, without HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from graftlm.cli.bench import report
from graftlm.cli.bench.offline import load_engine, make_offline_parser, random_ids
from graftlm.cli.startup import show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest


def build_parser() -> ArgumentParser:
    parser = make_offline_parser(
        "bench throughput", "Tokens per second of the engine in this process, all prompts at once."
    )
    parser.add_argument("--num-prompts", type=int, default=64, metavar="N", help="Prompts (default: 64).")
    parser.add_argument("--num-warmups", type=int, default=4, metavar="N", help="Prompts before (default: 4).")
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    llm, words = load_engine(parser, argv)
    with llm:
        if words.num_prompts < 1:
            raise UsageError(f"--num-prompts={words.num_prompts}: use 1 or more")
        if words.num_warmups > 0:
            llm.generate(*random_ids(llm, words, count=words.num_warmups, seed=words.seed + 1), progress=False)
        prompts, params = random_ids(llm, words, count=words.num_prompts, seed=words.seed)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, progress=False if words.no_progress else None)
        seconds = time.perf_counter() - start
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    num_prompt = sum(map(len, prompts))
    result = report.stamp("throughput", {k: v for k, v in vars(words).items() if "." not in k and k != "json"}) | {
        "duration_s": seconds,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "requests_per_s": len(prompts) / seconds,
        "output_tokens_per_s": num_output / seconds,
        "total_tokens_per_s": (num_prompt + num_output) / seconds,
    }
    report.write_json(result, words.json)
    if words.json != "-":
        rows = [
            (_title(name), report.number(result[name]))
            for name in ("duration_s", "prompt_tokens", "output_tokens", "requests_per_s", "output_tokens_per_s",
                         "total_tokens_per_s")
        ]  # fmt: skip
        report.print_rows(
            f"{llm.config.model.served_model_name[0]}, {counted(len(prompts), 'prompt')} at once", rows
        )
    return 0


def _title(name: str) -> str:
    return name.replace("_per_s", " per second").replace("_s", ", s").replace("_", " ")
