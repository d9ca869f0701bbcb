"""`graftlm bench`: what a server, an engine, a start or a plugin costs, measured as a user of it would see it.

It only chooses the sub-command. Each is a module of this package, imported when it is chosen.
"""

from __future__ import annotations

import importlib
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graftlm.cli.output_file import check_writable
from graftlm.cli.subcommands import with_hint
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.plugins.spelling import nearest_names

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

#: Name → what it does. A module `<name>` of this package has `build_parser()` and `run(argv, *, shutdown)`.
SUBCOMMANDS = {
    "serve": "Load a running server that speaks the OpenAI API: TTFT, ITL, TPOT, E2E latency, goodput.",
    "throughput": "Tokens per second of the engine in this process, all prompts at once.",
    "latency": "Seconds of one batch in this process, again and again.",
    "startup": "Seconds from launch to the first token, beside `import torch` in the same run.",
    "plugins": "What each installed plugin costs: milliseconds at start per process, nanoseconds per call.",
}


def build_parser() -> ArgumentParser:
    """Return the parser of the command itself, whose help names the sub-commands."""
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in SUBCOMMANDS.items()]
    return ArgumentParser(
        prog="graftlm bench",
        usage="graftlm bench SUBCOMMAND [OPTION …]",
        description="\n".join(["Measure what users see, and what things cost.", "", "sub-commands:", *lines]),
        formatter_class=RawDescriptionHelpFormatter,
    )


def load_subcommand(name: str) -> Any:
    """Import the module of a sub-command."""
    return importlib.import_module(f"{__name__}.{name}")


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    match argv:
        case [name, *rest] if name in SUBCOMMANDS:
            pass
        case words if not words or {"-h", "--help"} & set(words):
            print(build_parser().format_help())
            return 0
        case [word, *_]:
            near = nearest_names(word, SUBCOMMANDS, most=2)
            cure = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(SUBCOMMANDS)}"
            raise UsageError(f"unknown sub-command {word!r}; {cure}")
    _check_json_file(rest)
    try:
        code: int = load_subcommand(name).run(rest, shutdown=shutdown)
    except UsageError as error:
        raise with_hint(error, command="bench", name=name, siblings=SUBCOMMANDS, load=load_subcommand) from None
    return code


def _check_json_file(words: Sequence[str]) -> None:
    """All sub-commands have --json FILE; minutes of measurement are not lost for a folder that is not there."""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        path = following if word == "--json" else word.partition("=")[2] if word.startswith("--json=") else ""
        if path not in ("", "-") and not path.startswith("--"):
            check_writable("--json", path)
