"""Per-step and per-request numbers, and who consumes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig


class StepStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The engine core's numbers after one step; counters are of this step only."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    step_time_s: float = 0.0


class RequestStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One finished request, as the front end saw it; times in seconds."""

    request_id: str
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    e2e_latency_s: float
    time_to_first_token_s: float | None = None
    inter_token_latencies_s: list[float] = []
    max_tokens: int | None = None
    n: int = 1


class StatLogger:
    """A consumer of statistics in the front end; a plugin subclasses it.

    Constructed once as `StatLogger(config)`; `record` is called from a thread of its own, never from the loop
    that makes tokens, so it may block. What it raises is counted and shown, and stops nothing.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        """Take the numbers of one step and the requests that ended in it."""

    def log(self) -> None:
        """Say something about the time since the last call; called about every ten seconds."""

    def close(self) -> None:
        """The server stops."""
