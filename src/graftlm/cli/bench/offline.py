"""What the two offline benchmarks share: an engine in this process, made from the flags of `graftlm serve`.

It measures nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graftlm.cli.bench.prompts import RandomPrompts
from graftlm.cli.bench.serve import add_lengths, add_output_flags
from graftlm.cli.startup import add_engine_flags, make_parser, start_logging
from graftlm.config.arguments import ArgumentParser, UsageError, read_arguments
from graftlm.config.options import engine_options
from graftlm.contracts.sampling import SamplingParams

if TYPE_CHECKING:
    from graftlm.frontend.llm import LLM

OPTIONS = engine_options()


def make_offline_parser(command: str, description: str) -> ArgumentParser:
    parser = make_parser(
        command, description, model_help="Model: 'demo', a directory, a .gguf file or a hub id (default: demo)."
    )
    add_lengths(parser)
    add_output_flags(parser)
    # Engines and prompts are seeded by the same flag.
    options = [option for option in OPTIONS if option.path != "model.seed"]
    add_engine_flags(parser, options)
    return parser


def load_engine(parser: ArgumentParser, argv: Sequence[str]) -> tuple[LLM, argparse.Namespace]:
    """Return the engine, ready, and the other words of the command line."""
    arguments, words = read_arguments(parser, argv, options=OPTIONS)
    for name in ("input_len", "output_len"):
        if getattr(words, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}={getattr(words, name)}: use 1 or more")
    start_logging(arguments, default_levels=["warning"])
    from graftlm.frontend.llm import LLM

    names = {option.path: option.names[0] for option in OPTIONS}
    options = {names[path]: value for path, value in arguments.values.items()}
    return LLM(**{"seed": words.seed, **options}), words


def random_ids(
    llm: LLM, words: argparse.Namespace, *, count: int, seed: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return prompts of token ids, and parameters that make their answers exactly as long as drawn."""
    like = RandomPrompts(
        input_len=words.input_len,
        output_len=words.output_len,
        range_ratio=words.range_ratio,
        vocab_size=llm.config.model.vocab_size,
    )
    prompts = like.make(count, seed=seed)
    params = [SamplingParams(temperature=0.0, max_tokens=p.output_len, ignore_eos=True) for p in prompts]
    return [p.prompt for p in prompts], params  # type: ignore[misc]
