"""A worker without a model or torch: it counts up from the last known token, and misbehaves on request.

`config.model.hf_overrides` says how it behaves: {"fail": METHOD, "rank": RANK, "expected": bool, "sleep_s": S}.
A prompt with CRASH makes rank 1 (or the only one) raise, one with HANG makes rank 1 wait for ever; if it "forks", a
child of its own has its channel, too, for a minute.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.contracts.worker import KVCacheSpec

CRASH = 13
HANG = 14
VOCAB_SIZE = 1000


def make_config(*, ranks: int = 1, backend: str | None = None, start_method: str = "spawn", **behaviour: Any):
    """Return a frozen configuration for fake workers."""
    config = EngineConfig()
    config.model.max_model_len = 512
    config.model.architecture = "FakeForCausalLM"
    config.model.hf_config = {"vocab_size": VOCAB_SIZE, "num_attention_heads": 4, "hidden_size": 16}
    config.model.hf_overrides = behaviour
    config.parallel.tensor_parallel_size = ranks
    config.parallel.distributed_executor_backend = backend
    config.parallel.start_method = start_method
    config.parallel.worker_cls = "fake_worker:FakeWorker"
    config.freeze()
    return config


class FakeWorker:
    def __init__(self, config, *, rank, local_rank, distributed_init_method):
        self.config = config
        self.rank = rank
        self.behaviour = config.model.hf_overrides
        self.known: dict[str, list[int]] = {}
        self.is_last = rank == config.parallel.world_size - 1
        self.fails("init")
        assert (config.parallel.world_size == 1) == (distributed_init_method == "")

    def fails(self, method: str) -> None:
        if self.behaviour.get("fail") == method and self.behaviour.get("rank", 0) == self.rank:
            if self.behaviour.get("expected"):
                raise StartupError("the checkpoint lacks model.norm.weight; fetch it again")
            raise ZeroDivisionError(f"in {method}")

    def init_device(self) -> None:
        self.fails("init_device")

    def load_model(self) -> None:
        self.fails("load_model")
        time.sleep(self.behaviour.get("load_s", 0))

    def update_block_size(self) -> int:
        return self.behaviour.get("block_sizes", [16] * 8)[self.rank]

    def get_kv_cache_spec(self) -> KVCacheSpec:
        return KVCacheSpec(
            num_layers=1, num_kv_heads=1, head_size=8, dtype="float32", block_size=16, block_bytes=1024
        )

    def determine_available_memory(self) -> int:
        return self.behaviour.get("memory", [1024 * 100] * 8)[self.rank]

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self.fails("initialize_kv_cache")
        self.num_blocks = num_blocks

    def execute_step(self, plan: StepPlan) -> StepResult | None:
        self.fails("execute_step")
        time.sleep(self.behaviour.get("sleep_s", 0))
        for request_id in (*plan.finished, *plan.preempted):
            del self.known[request_id]
        result = StepResult(step_id=plan.step_id)
        for new in plan.new:
            self.known[new.request_id] = list(new.token_ids)
            if CRASH in new.token_ids and self.is_last:
                raise ValueError(f"cannot compute {new.request_id}")
            if HANG in new.token_ids and self.rank == 1:
                if "forks" in self.behaviour and os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                time.sleep(1000)
        for continued in plan.continued:
            self.known[continued.request_id] += continued.new_token_ids
        for request in (*plan.new, *plan.continued):
            known = self.known[request.request_id]
            reached = request.num_computed_tokens + plan.num_scheduled_tokens[request.request_id]
            if reached == len(known):
                result.sampled_token_ids[request.request_id] = [(known[-1] + 1) % VOCAB_SIZE]
        return result if self.rank == 0 else None

    def shutdown(self) -> None:
        print(f"rank {self.rank} left {os.getpid()}", file=sys.stderr)
