"""`graftlm bench startup`: several launches of a server, beside `import torch` in the same run.

What a start costs over `import torch` is what we can do something about; the machine decides the rest.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from graftlm.cli.bench import report
from graftlm.cli.bench.launch import LaunchedServer, LaunchFailed
from graftlm.cli.bench.launch_flags import make_launch_parser, read_launch_words
from graftlm.cli.startup import show_help_if_asked
from graftlm.config.arguments import ArgumentParser, read_selection
from graftlm.config.options import engine_options
from graftlm.plugins.spelling import counted
from graftlm.processes.in_hand import start_in_hand

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
    """Measure everything once; a server that is refused ends it before anything is started beside it."""
    with LaunchedServer(arguments) as server:
        times = server.wait_for_first_token()
    interpreter_s = seconds_of(["-c", "pass"])
    version_s = seconds_of(["-m", "graftlm", "--version"])
    torch_s = seconds_of(["-c", "import torch"], at_once=num_workers(arguments))
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
    """Run this interpreter with `words`, in several processes if wished, and return how long all of them took.

    Ctrl-C does not reach them, so they say nothing of it; they end with whoever waits for them.
    """
    start = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(at_once):
            processes.append(_start(words))
        for process in processes:
            _, said = process.communicate()
            if process.returncode != 0:
                last = said.decode(errors="replace").strip().splitlines()[-1:]
                raise LaunchFailed(shlex.join(["python", *words]), code=process.returncode, words="".join(last))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return time.perf_counter() - start


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return start_in_hand(
        [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


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
