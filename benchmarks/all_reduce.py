"""Times one all-reduce of a decode step: torch.distributed, shared memory, and shared memory within a kept step.

    python -m benchmarks.all_reduce [--ranks 2] [--busy]

Each rank is a process with a thread of its own. `--busy` lets another process spin on one core meanwhile. The times
are rank 0's, of calls one right after the other. It measures no model.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.tables import markdown, print_and_keep, short
from graftlm.cli.bench import report
from graftlm.testing.elsewhere import run_ranks

#: Of SmolLM2-135M, the demo model.
HIDDEN_SIZE, NUM_LAYERS = 576, 30
ROWS = (1, 8, 32)
WAYS = ("torch.distributed (gloo)", "shared memory", "shared memory, in a kept step")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=500, help="Calls of each way in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="Let another process spin on one core.")
    parser.add_argument("--json", metavar="FILE", help="Write the figures as JSON; - for the terminal.")
    args = parser.parse_args()
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if args.busy else None
    try:
        found = run_ranks("benchmarks.all_reduce:measure", args.calls, args.rounds, size=args.ranks)[0]
    finally:
        if spinner is not None:
            spinner.kill()
            spinner.wait()
    settings = {"ranks": args.ranks, "calls": args.calls, "rounds": args.rounds, "busy": args.busy}
    result = {**report.stamp("all_reduce", settings), "microseconds": found}
    head = ["rows × 576 float32", *(f"{way}, µs: median of rounds (min…max); p99" for way in WAYS)]
    table = [[str(rows), *(_cell(found[way][str(rows)]) for way in WAYS)] for rows in ROWS]
    print_and_keep(result, markdown(head, table), args.json)
    return 0


def _cell(rounds: list[tuple[float, float]]) -> str:
    medians = [median for median, _ in rounds]
    worst = statistics.median(p99 for _, p99 in rounds)
    return f"{short(statistics.median(medians))} ({short(min(medians))}…{short(max(medians))}); {short(worst)}"


def measure(rank: int, size: int, init_method: str, calls: int, rounds: int) -> dict[str, Any]:
    """Return, for each way and number of rows, median and p99 of each round; called in each rank's process."""
    import torch
    import torch.distributed as dist
    from graftlm_kernels import _native
    from graftlm_kernels.communicator import SharedMemoryCommunicator

    from graftlm.distributed import groups
    from graftlm.distributed.communicator import TorchCommunicator

    torch.set_num_threads(1)
    groups._keep_gloo_on_loopback(init_method)
    dist.init_process_group("gloo", init_method=init_method, world_size=size, rank=rank)
    place = {"group": dist.group.WORLD, "device": torch.device("cpu"), "name": "tp"}
    gloo, shared = TorchCommunicator(**place), SharedMemoryCommunicator(**place)  # type: ignore[arg-type]
    if shared.shared is None:
        raise RuntimeError(f"nothing to compare: {shared.remark}")
    found: dict[str, Any] = {way: {str(rows): [] for rows in ROWS} for way in WAYS}
    for rows in ROWS:
        x = torch.zeros(rows, HIDDEN_SIZE)
        step = _native.CapturedStep(*[0] * 7)
        step.begin()
        for _ in range(2 * NUM_LAYERS + 1):  # after attention and MLP of each layer, and the embedding
            shared.all_reduce(x)
        step.end()
        run: dict[str, tuple[Callable[[], Any], int]] = {
            WAYS[0]: (partial(gloo.all_reduce, x), 1),
            WAYS[1]: (partial(shared.all_reduce, x), 1),
            WAYS[2]: (partial(step.run, *[0] * 7), len(step)),
        }
        for _ in range(rounds):
            for way, (call, parts) in run.items():  # ways take turns, since the machine's other load changes
                found[way][str(rows)].append(_time(call, calls // parts + 1, parts))
    dist.destroy_process_group()
    return found


def _time(call: Callable[[], Any], calls: int, parts: int) -> tuple[float, float]:
    """Return median and p99 in microseconds of one part of a call."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1e3 / parts)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


if __name__ == "__main__":
    sys.exit(main())
