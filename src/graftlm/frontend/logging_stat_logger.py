"""The built-in stat logger: one line about throughput every ten seconds, while there is traffic."""

from __future__ import annotations

import logging
import time

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.stats import RequestStats, StatLogger, StepStats

logger = logging.getLogger(__name__)


class LoggingStatLogger(StatLogger):
    """Sums the steps since the last line."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._last = StepStats()
        self._begin()

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        self._num_finished += len(finished)
        if step is None:
            return
        self._last = step
        self._num_steps += 1
        self._prompt_tokens += step.num_prompt_tokens
        self._generation_tokens += step.num_generation_tokens
        self._preemptions += step.num_preemptions
        self._queries += step.prefix_cache_queries
        self._hits += step.prefix_cache_hits

    def log(self) -> None:
        if not self._num_steps and not self._num_finished:
            return
        seconds = max(time.monotonic() - self._since, 1e-9)
        logger.info(
            "throughput prompt_tokens_per_s=%.1f generation_tokens_per_s=%.1f running=%d waiting=%d finished=%d "
            "kv_cache_usage=%.1f%% prefix_cache_hit_rate=%.1f%% preemptions=%d",
            self._prompt_tokens / seconds,
            self._generation_tokens / seconds,
            self._last.num_running,
            self._last.num_waiting,
            self._num_finished,
            100 * self._last.kv_cache_usage,
            100 * self._hits / self._queries if self._queries else 0.0,
            self._preemptions,
        )
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._num_steps = self._num_finished = self._preemptions = 0
        self._prompt_tokens = self._generation_tokens = 0
        self._queries = self._hits = 0
