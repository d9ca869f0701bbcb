"""What the ranks of test_kernels_tensor_parallel do, each in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "worker"))

import torch
import torch.distributed as dist
from worker_runs import Engine

from graftlm.config import EngineConfig
from graftlm.distributed.groups import tp_communicator
from graftlm.engine.configure import configure
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.scheduler import Scheduler
from graftlm.worker.cpu_worker import CpuWorker

Prompt = tuple[list[int], int]


class RankEngine(Engine):
    """As its base, one rank of several: each schedules for itself, and rank 0 tells the others its results."""

    def __init__(self, path: str, *, rank: int, size: int, init_method: str, num_blocks: int = 64) -> None:
        config = EngineConfig()
        config.model.model, config.model.dtype = path, "float32"
        config.scheduler.max_num_seqs, config.parallel.tensor_parallel_size = 16, size
        self.config = configure(config, bootstrap_frontend(), progress=False)
        self.worker = CpuWorker(self.config, rank=rank, local_rank=rank, distributed_init_method=init_method)
        self.worker.init_device()
        self.worker.load_model()
        self.block_size = self.worker.update_block_size()
        self.worker.initialize_kv_cache(num_blocks)
        self.scheduler = Scheduler(self.config, num_blocks=num_blocks, block_size=self.block_size)
        self.plans = []
        execute = self.worker.execute_step

        def tell(plan: Any) -> Any:
            told = [execute(plan)]
            dist.broadcast_object_list(told, src=0)
            return told[0]

        self.worker.execute_step = tell  # type: ignore[method-assign]


def outputs(
    rank: int, size: int, init_method: str, path: str, prompts: list[Prompt], trouble: str = ""
) -> dict[str, Any]:
    """Continue prompts greedily, three times; return the ids of each round and what was kept.

    `trouble` comes to the last rank after the first round.
    """
    from worker_runs import greedy

    engine = RankEngine(path, rank=rank, size=size, init_method=init_method)
    runner = engine.worker.model_runner
    rounds = []
    for number in range(3):
        if number == 1 and trouble == "hook" and rank == size - 1:
            engine.worker.model.register_forward_hook(lambda *_: None)
        more = prompts if number < 2 else [*prompts, *prompts]  # steps of other sizes, which are new
        asked = [greedy(f"{number}-{i}", prompt, max_tokens=most) for i, (prompt, most) in enumerate(more)]
        rounds.append(list(engine.outputs(asked).values()))
    kept, communicator = runner._greedy, tp_communicator()
    assert kept is not None and communicator is not None
    found = {
        "rounds": rounds,
        "remark": communicator.remark,
        "given_up": kept.is_given_up,
        "kept": {tokens: (step.num_native, step.splits, step.is_proven) for tokens, step in kept.steps.items()},
    }
    engine.worker.shutdown()
    assert not dist.is_initialized() and torch.get_num_threads() >= 1
    return found
