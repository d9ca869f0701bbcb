"""The engine core: schedule, execute, update, and again; the one place that knows both scheduler and executor.

It does not know where requests come from, nor who waits for their tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.executor import Executor, WorkerReport
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate, StepOutputs
from graftlm.contracts.scheduler import StepScheduler
from graftlm.engine.cache_size import plan_num_blocks
from graftlm.engine.scheduler_choice import build_scheduler
from graftlm.executor import build_executor
from graftlm.processes.startup_trace import span


class EngineCore:
    """One model's requests, advanced together step by step; used by one thread."""

    def __init__(self, config: EngineConfig, executor: Executor, scheduler: StepScheduler) -> None:
        self.config = config
        self.executor = executor
        self.scheduler = scheduler
        self.reports: Sequence[WorkerReport] = ()
        self.num_blocks = 0
        self._unheard: list[RequestUpdate] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to tell."""
        return self.scheduler.has_unfinished or bool(self._unheard)

    def add_request(self, request: EngineRequest) -> None:
        """Let a request take part; one that cannot be served ends with an error in the next step's outputs."""
        try:
            self.scheduler.add_request(request)
        except GraftlmError as error:
            self._unheard.append(
                RequestUpdate(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=str(error))
            )

    def abort(self, request_ids: list[str]) -> None:
        """End requests at once; the next step's outputs say so. Ids that are not in progress are passed over."""
        self._unheard += self.scheduler.abort(request_ids)

    def step(self) -> StepOutputs:
        """Advance every request that the scheduler chooses; raises EngineDead when a worker fails."""
        if not self.scheduler.has_unfinished:
            return self._outputs([])
        begun = time.perf_counter()
        plan = self.scheduler.schedule()
        result = self.executor.execute_step(plan)
        updates = self.scheduler.update(plan, result, step_time_s=time.perf_counter() - begun)
        return self._outputs(updates, step_time_s=time.perf_counter() - begun)

    def _outputs(self, updates: list[RequestUpdate], *, step_time_s: float = 0.0) -> StepOutputs:
        stats = self.scheduler.stats()
        stats.step_time_s = step_time_s
        unheard, self._unheard = self._unheard, []
        return StepOutputs(updates=unheard + updates, stats=stats)

    def shutdown(self) -> None:
        """End the workers; safe to call twice."""
        self.executor.shutdown()


def build_core(
    config: EngineConfig,
    *,
    on_failure: Callable[[str], None],
    on_status: Callable[[str], None] = lambda text: None,
) -> EngineCore:
    """Start the workers, size and allocate the KV cache, and return a core that can step.

    `on_failure(cause)` is called from any thread when a worker dies between two steps. On an error nothing is left
    running.
    """
    executor = build_executor(config)
    try:
        reports = executor.start(on_failure=on_failure, on_status=on_status)
        on_status("allocating the KV cache")
        num_blocks = plan_num_blocks(config, reports)
        with span("allocate the KV cache"):
            executor.initialize_kv_cache(num_blocks)
        scheduler = build_scheduler(config, num_blocks=num_blocks, block_size=reports[0].block_size)
        core = EngineCore(config, executor, scheduler)
    except BaseException:
        executor.shutdown()
        raise
    core.reports, core.num_blocks = reports, num_blocks
    return core
