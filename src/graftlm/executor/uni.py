"""The executor of one worker in the engine core's own process: no message, no copy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from graftlm.contracts.errors import EngineDead
from graftlm.contracts.executor import Executor, WorkerReport
from graftlm.executor.worker_start import start_worker
from graftlm.plugins import Role, current_host
from graftlm.plugins.call_times import record_call_times
from graftlm.processes.failure import Failure

if TYPE_CHECKING:
    from graftlm.contracts.step import StepPlan, StepResult
    from graftlm.contracts.worker import Worker

logger = logging.getLogger(__name__)


class UniExecutor(Executor):
    """Calls its worker; a failure of the worker is an exception here."""

    _worker: Worker | None = None

    def start(self, *, on_failure: Callable[[str], None], on_status: Callable[[str], None]) -> list[WorkerReport]:
        current_host().take_role(Role.WORKER)
        self._worker, report = start_worker(
            self.config, rank=0, local_rank=0, distributed_init_method="", on_status=on_status
        )
        return [report]

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the worker is asked for before start() or after shutdown()")
        return self._worker

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self.worker.initialize_kv_cache(num_blocks)
        if self.config.observability.time_plugin_calls:
            from graftlm.executor.timed_worker import time_worker

            time_worker(self.worker)

    def execute_step(self, plan: StepPlan) -> StepResult:
        try:
            result = self.worker.execute_step(plan)
        except Exception as error:
            logger.exception("worker failed rank=0 step_id=%d", plan.step_id)
            raise EngineDead(f"worker 0: {Failure.of(error).cause}") from error
        assert result is not None, "rank 0 returns a result"
        return result

    def shutdown(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()
            record_call_times()
