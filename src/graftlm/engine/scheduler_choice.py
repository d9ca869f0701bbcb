"""Makes the scheduler that --scheduler-cls names, else the engine's own; a plugin's is called under its name.

It does not know how either decides.
"""

from __future__ import annotations

import logging

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import SCHEDULERS
from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.scheduler import SCHEDULER_METHODS, StepScheduler
from graftlm.contracts.stats import StepStats
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.plugins import Plugin, calling, record
from graftlm.plugins.named import load_named, plugin_named
from graftlm.plugins.registrar import distribution_of
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.scheduler import Scheduler

logger = logging.getLogger(__name__)

_FLAG = "--scheduler-cls"


def build_scheduler(config: EngineConfig, *, num_blocks: int, block_size: int) -> StepScheduler:
    """Raise StartupError when what is named is no scheduler; PluginFailed when it cannot be imported."""
    named = config.scheduler.scheduler_cls
    if named is None:
        return Scheduler(config, num_blocks=num_blocks, block_size=block_size)
    cls = load_named(SCHEDULERS, named, what=_FLAG)
    missing = [name for name in SCHEDULER_METHODS if not callable(getattr(cls, name, None))]
    if not isinstance(cls, type) or missing or not hasattr(cls, "has_unfinished"):
        lacks = (
            f"it has no {', '.join(missing or ['has_unfinished'])}" if isinstance(cls, type) else "it is no class"
        )
        raise StartupError(f"{_FLAG}={named!r} cannot be a scheduler: {lacks}; see graftlm.contracts.scheduler")
    plugin = plugin_named(SCHEDULERS, named) or distribution_of(cls.__module__)
    with calling_at_start(plugin, f"{cls.__name__}.__init__"):
        scheduler: StepScheduler = cls(config, num_blocks=num_blocks, block_size=block_size)
    record("scheduler_chosen", plugin=plugin, scheduler=named)
    logger.info("scheduler chosen scheduler_cls=%s", named)
    return CalledByName(scheduler, plugin)


class CalledByName:
    """A plugin's scheduler, whose exceptions name the plugin."""

    def __init__(self, scheduler: StepScheduler, plugin: Plugin | str) -> None:
        self._scheduler = scheduler
        self._plugin = plugin

    @property
    def has_unfinished(self) -> bool:
        with calling(self._plugin, "has_unfinished"):
            return self._scheduler.has_unfinished

    @property
    def num_free_blocks(self) -> int | None:
        """None where the scheduler does not tell it: it need not."""
        with calling(self._plugin, "num_free_blocks"):
            return getattr(self._scheduler, "num_free_blocks", None)

    def add_request(self, engine_request: EngineRequest) -> None:
        with calling(self._plugin, "add_request"):
            self._scheduler.add_request(engine_request)

    def abort(self, request_ids: list[str]) -> list[RequestUpdate]:
        with calling(self._plugin, "abort"):
            return self._scheduler.abort(request_ids)

    def schedule(self) -> StepPlan:
        with calling(self._plugin, "schedule"):
            return self._scheduler.schedule()

    def update(
        self, plan: StepPlan, result: StepResult, *, step_time_s: float | None = None
    ) -> list[RequestUpdate]:
        with calling(self._plugin, "update"):
            return self._scheduler.update(plan, result, step_time_s=step_time_s)

    def stats(self) -> StepStats:
        with calling(self._plugin, "stats"):
            return self._scheduler.stats()
