"""What the engine core needs of a scheduler, which plans steps and takes in their results.

Provisional: it may change with any version. It does not know how a step is executed.
"""

from __future__ import annotations

from typing import Protocol

from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.stats import StepStats
from graftlm.contracts.step import StepPlan, StepResult

#: What must be callable of a class that is named as a scheduler, beside its property `has_unfinished`.
SCHEDULER_METHODS = ("add_request", "abort", "schedule", "update", "stats")


class StepScheduler(Protocol):
    """Made once as `cls(config, num_blocks=…, block_size=…)`, and called by one thread."""

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has something to do or to tell."""
        ...

    def add_request(self, engine_request: EngineRequest) -> None:
        """Let a request wait for its turn; a GraftlmError ends that request with its text."""
        ...

    def abort(self, request_ids: list[str]) -> list[RequestUpdate]:
        """End requests at once; ids that are not in progress are passed over."""
        ...

    def schedule(self) -> StepPlan:
        """Plan one step."""
        ...

    def update(
        self, plan: StepPlan, result: StepResult, *, step_time_s: float | None = None
    ) -> list[RequestUpdate]:
        """Take in what came of a plan, and return what the requests' owners are to hear."""
        ...

    def stats(self) -> StepStats:
        """Return the numbers of the last step."""
        ...
