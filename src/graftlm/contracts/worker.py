"""The contract of a worker: one process's hold on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.step import StepPlan, StepResult


class KVCacheSpec(msgspec.Struct, frozen=True):
    """What one worker's KV cache holds in each block, all layers together."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype: str
    block_size: int
    block_bytes: int


@runtime_checkable
class Worker(Protocol):
    """What the executor calls, in this order; a platform's worker usually subclasses `graftlm.worker.Worker`.

    Constructed as `Worker(config, rank=…, local_rank=…, distributed_init_method=…)`. Rank 0 of a tensor-parallel
    group samples and returns a StepResult; other ranks return None from `execute_step`.
    """

    def __init__(
        self, config: EngineConfig, *, rank: int, local_rank: int, distributed_init_method: str
    ) -> None: ...

    def init_device(self) -> None:
        """Take the device; for more than one rank build the process groups."""

    def load_model(self) -> None:
        """Build the model and load this rank's share of the weights."""

    def update_block_size(self) -> int:
        """Ask the platform for the block size and use it."""

    def get_kv_cache_spec(self) -> KVCacheSpec: ...

    def determine_available_memory(self) -> int:
        """Bytes that the KV cache may take on this device."""

    def initialize_kv_cache(self, num_blocks: int) -> None: ...

    def execute_step(self, plan: StepPlan) -> StepResult | None: ...

    def shutdown(self) -> None: ...
