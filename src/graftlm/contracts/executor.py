"""The contract of an executor: how the engine core reaches its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from graftlm.contracts.worker import KVCacheSpec

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.step import StepPlan, StepResult


class WorkerReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one worker found out while it started.

    `ledger` is the plugin ledger of its process, or empty when it lives in the engine core's.
    """

    rank: int
    pid: int
    block_size: int
    kv_cache_spec: KVCacheSpec
    available_memory: int
    """Bytes that the KV cache may take on its device."""
    ledger: bytes = b""
    startup_trace: bytes = b""
    """Where its start's time went, if that was asked for and it has a process of its own."""


class Executor(ABC):
    """Starts the workers, hands them steps, and reports the death of any of them."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def start(self, *, on_failure: Callable[[str], None], on_status: Callable[[str], None]) -> list[WorkerReport]:
        """Bring all workers to READY and return what each reported, in rank order; raises StartupError.

        `on_failure(cause)` is called at most once, from any thread, when a worker dies later outside of a call.
        `on_status(text)` may be told what start-up is doing.
        """

    @abstractmethod
    def initialize_kv_cache(self, num_blocks: int) -> None: ...

    @abstractmethod
    def execute_step(self, plan: StepPlan) -> StepResult:
        """Run one step on all workers; raises EngineDead when a worker fails."""

    @abstractmethod
    def shutdown(self) -> None:
        """End all workers and wait for them; safe to call twice."""
