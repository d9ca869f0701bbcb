"""Greedy decoding in one process, plain torch beside the kernels: tokens per second, and Python's share of a step.

It measures neither HTTP nor processes. Run it with graftlm and graftlm-kernels installed:

    python kernels/bench.py demo --streams 1 8 32 --modes torch kernels-fp32 kernels
    python kernels/bench.py linear      # integer matrices beside the ceilings of this machine: bench_linear.py
    python kernels/bench.py attention   # paged attention, likewise: bench_attention.py
"""

from __future__ import annotations

import os

# As in a worker's process: a thread of torch's that spins would take the core of another.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graftlm.config import EngineConfig
from graftlm.contracts.request import EngineRequest
from graftlm.contracts.sampling import SamplingParams
from graftlm.engine.configure import configure
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.scheduler import Scheduler
from graftlm.worker.cpu_worker import CpuWorker

NUM_BLOCKS = 4096


class Engine:
    """One worker and a scheduler, in one of three modes."""

    def __init__(self, model: str, mode: str, host: Any) -> None:
        config = EngineConfig()
        config.model.model = model
        config.scheduler.max_num_seqs = 64
        config.cache.enable_prefix_caching = False
        if mode != "kernels":
            config.model.dtype = "float32"
        if mode == "torch":
            config.compilation.custom_ops = ["none"]
            config.attention.attention_backend = "TORCH_PAGED"
        self.worker = CpuWorker(
            configure(config, host, progress=False), rank=0, local_rank=0, distributed_init_method=""
        )
        self.worker.init_device()
        self.worker.load_model()
        self.block_size = self.worker.update_block_size()
        self.worker.initialize_kv_cache(NUM_BLOCKS)
        self.scheduler = Scheduler(config, num_blocks=NUM_BLOCKS, block_size=self.block_size)
        self.num_requests = 0

    def run(self, prompts: list[list[int]], max_tokens: int) -> tuple[list[float], float, float]:
        """Return seconds of each decode step, of all steps with prefill, and of the whole run."""
        scheduler = self.scheduler
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for prompt in prompts:
            self.num_requests += 1
            request_id = f"r{self.num_requests}"
            scheduler.add_request(EngineRequest(request_id=request_id, prompt_token_ids=prompt, params=params))
        decode, prefill, started = [], 0.0, time.perf_counter()
        while scheduler.has_unfinished:
            begin = time.perf_counter()
            plan = scheduler.schedule()
            result = self.worker.execute_step(plan)
            assert result is not None
            scheduler.update(plan, result)
            seconds = time.perf_counter() - begin
            if sum(plan.num_scheduled_tokens.values()) == len(plan.num_scheduled_tokens):
                decode.append(seconds)
            else:
                prefill += seconds
        return decode, prefill, time.perf_counter() - started


@contextmanager
def native_seconds() -> Iterator[list[float]]:
    """Collect the time inside native calls of packed matrices; what else a step takes is Python and torch."""
    from graftlm_kernels import _native, attention, capture, native

    total = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args)
            finally:
                total[0] += time.perf_counter() - begin

        return run

    calls_of = {
        native.PackedWeight: ("_multiply",),
        attention.NativeCpuAttention: ("_write", "_attend"),
        capture.KeptStep: ("run",),
    }
    undo = []
    for held in gc.get_objects():
        for name in calls_of.get(type(held), ()):
            undo.append((held, name, getattr(held, name)))
            setattr(held, name, timed(getattr(held, name)))
    for name in ("rms_norm", "silu_and_mul", "rotate"):
        undo.append((_native, name, getattr(_native, name)))
        setattr(_native, name, timed(getattr(_native, name)))
    try:
        yield total
    finally:
        for held, name, call in undo:
            setattr(held, name, call)


def main() -> None:
    if sys.argv[1:2] == ["linear"]:
        import bench_linear

        bench_linear.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["attention"]:
        import bench_attention

        bench_attention.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--modes", nargs="*", default=["torch", "kernels-fp32", "kernels"])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    host, threads = bootstrap_frontend(), torch.get_num_threads()
    engines = {mode: Engine(args.model, mode, host) for mode in args.modes}
    generator = random.Random(0)
    print(
        f"{'streams':>7} {'mode':>13} {'decode tok/s':>13} {'step ms':>9} {'prefill tok/s':>14} {'out tok/s':>10}"
    )
    for streams in args.streams:
        found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in engines}
        for _ in range(args.rounds):  # modes take turns, since the machine's other load changes
            prompts = [
                [generator.randrange(1000, 40000) for _ in range(args.prompt_tokens)] for _ in range(streams)
            ]
            for mode, engine in engines.items():
                torch.set_num_threads(threads if mode == "torch" else 1)
                decode, prefill, total = engine.run(prompts, args.max_tokens)
                rates = (statistics.median(decode), prefill, total)
                found[mode].append(rates)
        for mode, runs in found.items():
            step = statistics.median(run[0] for run in runs)
            prefill = statistics.median(run[1] for run in runs)
            total = statistics.median(run[2] for run in runs)
            print(
                f"{streams:7d} {mode:>13} {streams / step:13.1f} {step * 1e3:9.2f} "
                f"{streams * args.prompt_tokens / prefill:14.1f} {streams * args.max_tokens / total:10.1f}",
                flush=True,
            )
        if "kernels" in engines:
            with native_seconds() as native:
                decode, _, total = engines["kernels"].run(prompts, args.max_tokens)
            outside = (total - native[0]) / (len(decode) + 1)
            print(
                f"        kernels: {outside * 1e3:.2f} ms a step outside of native calls (timers included)",
                flush=True,
            )


if __name__ == "__main__":
    main()
