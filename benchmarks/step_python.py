"""`python -m benchmarks.step_python`: what the interpreter costs in a decode step, and the kernels' share of it.

Scheduler and worker run in this process, as in the engine core of one rank; front end and messages are left out.
Counted are steps in which every request decodes, once steps of their size are kept. Python's time is processor time
of this thread outside of native calls, so that other load hardly shows in it; the kernels' is by the clock. Beside
them, in turns, the same steps as they are where none is kept: the model's code makes each call.
"""

from __future__ import annotations

import os

# As in a worker's process: a thread of torch's that spins would take the core of another.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.tables import markdown, print_and_keep, short
from graftlm.cli.bench import report
from graftlm.config import EngineConfig
from graftlm.contracts.request import EngineRequest
from graftlm.contracts.sampling import SamplingParams
from graftlm.engine.configure import configure
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.scheduler import Scheduler

NUM_BLOCKS = 1024
#: Kept and other steps take turns.
TURNS = 4


class Clock:
    """Adds up what native calls take, by the clock and of this thread's processor time."""

    def __init__(self) -> None:
        self.wall = self.own = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            wall, own = time.perf_counter(), time.thread_time()
            try:
                return call(*args)
            finally:
                self.own += time.thread_time() - own
                self.wall += time.perf_counter() - wall

        return timed


class Engine:
    """One worker and a scheduler."""

    def __init__(self, model: str, **options: Any) -> None:
        from graftlm.worker.cpu_worker import CpuWorker

        config = EngineConfig()
        config.model.model = model
        config.scheduler.max_num_seqs, config.cache.enable_prefix_caching = 64, False
        for name, value in options.items():
            setattr(config.model, name, value)
        config = configure(config, bootstrap_frontend(), progress=False)
        self.worker = CpuWorker(config, rank=0, local_rank=0, distributed_init_method="")
        self.worker.init_device()
        self.worker.load_model()
        block_size = self.worker.update_block_size()
        self.worker.initialize_kv_cache(NUM_BLOCKS)
        self.scheduler = Scheduler(config, num_blocks=NUM_BLOCKS, block_size=block_size)
        self.vocab_size = config.model.vocab_size

    def run(self, name: str, streams: int, tokens: int) -> list[tuple[float, float, float, float]]:
        """Decode so many tokens of each stream; return each step's wall, Python, scheduler's Python and kernels."""
        chance, clock, found = random.Random(0), Clock(), []
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for stream in range(streams):
            prompt = [chance.randrange(self.vocab_size) for _ in range(16)]
            request = EngineRequest(request_id=f"{name}-{stream}", prompt_token_ids=prompt, params=params)
            self.scheduler.add_request(request)
        undo = self._time_native_calls(clock)
        while self.scheduler.has_unfinished:
            clock.wall = clock.own = 0.0
            wall, own = time.perf_counter(), time.thread_time()
            plan = self.scheduler.schedule()
            planned = time.thread_time()
            result = self.worker.execute_step(plan)
            executed = time.thread_time()
            assert result is not None
            self.scheduler.update(plan, result)
            ended = time.thread_time()
            if list(plan.num_scheduled_tokens.values()) == [1] * streams:
                scheduling = planned - own + ended - executed
                found.append((time.perf_counter() - wall, ended - own - clock.own, scheduling, clock.wall))
        undo()
        return found

    @contextlib.contextmanager
    def without_kept_steps(self) -> Iterator[None]:
        """Leave every step to the model's code, as where something stands in the way of keeping one."""
        before = [(capture, capture.is_given_up) for capture in self._captures()]
        for capture, _ in before:
            capture.is_given_up = True
        yield
        for capture, was_given_up in before:
            capture.is_given_up = was_given_up

    def _captures(self) -> list[Any]:
        runner: Any = self.worker.model_runner
        return [capture for capture in (runner._greedy, runner._forward) if hasattr(capture, "is_given_up")]

    def _time_native_calls(self, clock: Clock) -> Callable[[], None]:
        """Wrap the parts of all kept steps; return what takes the wrappers off."""
        kept = [step for capture in self._captures() for step in capture.steps.values()]
        before = [(step, step.parts) for step in kept]
        for step in kept:
            step.parts = [clock.around(part) if hasattr(part, "calls") else part for part in step.parts]

        def undo() -> None:
            for step, parts in before:
                step.parts = parts

        return undo


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=100, help="Decode steps of each number of streams.")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", metavar="FILE", help="Write the figures as JSON; - for the terminal.")
    args = parser.parse_args()
    engine = Engine(args.model, dtype=args.dtype)
    rows, figures = [], {}
    for streams in args.streams:
        engine.run(f"warm-{streams}", streams, 6)
        steps, plain = [], []
        for turn in range(TURNS):
            steps += engine.run(f"timed-{streams}-{turn}", streams, args.steps // TURNS + 1)
            with engine.without_kept_steps():
                plain += engine.run(f"plain-{streams}-{turn}", streams, args.steps // TURNS + 1)
        wall, python, scheduling, kernels = (statistics.median(column) for column in zip(*steps, strict=True))
        share = statistics.median(native / whole for whole, _, _, native in steps)
        not_kept = statistics.median(whole for whole, *_ in plain)
        figures[streams] = {
            "step_ms": wall * 1e3, "kernels_ms": kernels * 1e3, "kernels_share": share, "python_us": python * 1e6,
            "scheduler_us": scheduling * 1e6, "step_not_kept_ms": not_kept * 1e3,
        }  # fmt: skip
        rows.append(
            [
                str(streams), short(wall * 1e3), short(not_kept * 1e3), short(kernels * 1e3), f"{share:.1%}",
                short(python * 1e6), short(scheduling * 1e6), short((python - scheduling) * 1e6),
            ]
        )  # fmt: skip
    head = [
        "streams", "step, ms", "none kept, ms", "kernels, ms", "their share", "Python, µs", "scheduler, µs",
        "worker, µs",
    ]  # fmt: skip
    settings = {"model": args.model, "dtype": args.dtype, "steps": args.steps}
    print_and_keep({**report.stamp("step_python", settings), "figures": figures}, markdown(head, rows), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
