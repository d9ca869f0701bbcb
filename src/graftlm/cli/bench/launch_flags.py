"""What the benchmarks that launch servers share on the command line: MODEL, rounds, and the server's own flags.

It launches and measures nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from graftlm.cli.startup import make_parser
from graftlm.config.arguments import ArgumentParser, UsageError


def make_launch_parser(command: str, description: str, *, rounds: int) -> ArgumentParser:
    """Return a parser with the flags that all of them have; `rounds` is the default of --rounds."""
    parser = make_parser(
        command,
        f"{description} Flags of `graftlm serve` may follow after --.",
        model_help="Model to serve (default: demo).",
    )
    parser.usage = f"graftlm {command} [MODEL] [OPTION …] [-- SERVE OPTION …]"
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, metavar="N", help=f"Launches (default: {rounds}).")
    add("--json", metavar="FILE", help="Also write every figure as JSON; - is standard output.")
    add("--no-progress", action="store_true", help="Show no progress bar.")
    return parser


def read_launch_words(
    parser: ArgumentParser, argv: Sequence[str], *, counts: Sequence[str] = ("rounds",)
) -> tuple[argparse.Namespace, list[str]]:
    """Return the benchmark's own words and the server's arguments; each of `counts` has to be 1 or more."""
    own, served = split_dashes(argv)
    words = parser.parse_strictly(own)
    for name in counts:
        if getattr(words, name) < 1:
            raise UsageError(f"--{name}={getattr(words, name)}: use 1 or more")
    return words, [words.model or "demo", *served]


def split_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the command line at the first `--`."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]
