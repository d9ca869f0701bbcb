"""`graftlm bench startup`: several launches of a server, beside `import torch` in the same run.

What a start costs over `import torch` is what we can do something about; the machine decides the rest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from graftlm.cli.bench import report
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.launch_flags import make_launch_parser, read_launch_words
from graftlm.cli.startup import show_help_if_asked
from graftlm.config.arguments import ArgumentParser, read_selection
from graftlm.config.options import engine_options
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graftlm.processes.shutdown import ShutdownRequest

TITLES = {
    "interpreter_s": "python -c pass",
    "version_s": "graftlm --version",
    "torch_s": "python -c 'import torch', one for each worker at once",
    "answered_s": "launch to the first answer of /health",
    "ready_s": "launch to ready",
    "first_token_s": "launch to the first token",
    "over_torch_s": "  of which over `import torch`",
}


def build_parser() -> ArgumentParser:
    return make_launch_parser("bench startup", "Launch a server several times.", rounds=5)


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words, arguments = read_launch_words(parser, argv)
    figures: dict[str, list[float]] = {name: [] for name in TITLES}
    result = report.stamp("startup", {"arguments": arguments, "rounds": words.rounds})
    with report.Progress(words.rounds, "launches", show=not words.no_progress) as bar:
        for _ in range(words.rounds):
            for name, value in one_round(arguments).items():
                figures[name].append(value)
            bar.advance()
    result["seconds"] = figures
    report.write_json(result, words.json)
    if words.json != "-":
        print_result(figures, arguments)
    return 0


def one_round(arguments: Sequence[str]) -> dict[str, float]:
    """Measure everything once, the cheap things first, so that all see the same machine."""
    interpreter_s = seconds_of(["-c", "pass"])
    version_s = seconds_of(["-m", "graftlm", "--version"])
    torch_s = seconds_of(["-c", "import torch"], at_once=num_workers(arguments))
    with LaunchedServer(arguments) as server:
        times = server.wait_for_first_token()
    return {
        "interpreter_s": interpreter_s,
        "version_s": version_s,
        "torch_s": torch_s,
        "answered_s": times.answered_s,
        "ready_s": times.ready_s,
        "first_token_s": times.first_token_s,
        "over_torch_s": times.first_token_s - torch_s,
    }


def seconds_of(words: Sequence[str], *, at_once: int = 1) -> float:
    """Run this interpreter with `words`, in several processes if wished, and return how long all of them took."""
    start = time.perf_counter()
    command = [sys.executable, *words]
    for process in [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(at_once)]:
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - start


def num_workers(arguments: Sequence[str]) -> int:
    """Read from the server's flags how many of its processes import torch."""
    known = [option for option in engine_options() if option.path == "parallel.tensor_parallel_size"]
    return int(read_selection(arguments, more=known).values.get(known[0].path, 1))


def print_result(figures: dict[str, list[float]], arguments: Sequence[str]) -> None:
    rows: list[Any] = [
        (TITLES[name], report.number(statistics.median(values)), f"{min(values):.2f}…{max(values):.2f}")
        for name, values in figures.items()
    ]
    report.print_rows(
        f"graftlm serve {' '.join(arguments)}: seconds, {counted(len(figures['ready_s']), 'launch')}",
        rows, header=("", "median", "min…max"),
    )  # fmt: skip
