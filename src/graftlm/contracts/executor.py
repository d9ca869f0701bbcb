"""The contract of an executor: how the engine core reaches its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.step import StepPlan, StepResult


class Executor(ABC):
    """Starts the workers, hands them steps, and reports the death of any of them."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def start(self, *, on_failure: Callable[[str], None]) -> list[dict[str, Any]]:
        """Bring all workers to READY and return what each reported (ledger, fingerprint, block size, KV spec).

        `on_failure(cause)` is called at most once, from any thread, when a worker dies later.
        """

    @abstractmethod
    def initialize_kv_cache(self, num_blocks: int) -> None: ...

    @abstractmethod
    def execute_step(self, plan: StepPlan) -> StepResult:
        """Run one step on all workers; raises EngineDead when a worker fails."""

    @abstractmethod
    def shutdown(self) -> None:
        """End all workers and wait for them; safe to call twice."""
