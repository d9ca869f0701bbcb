"""The conformance suite of stat loggers, called as the front end calls them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.points import STAT_LOGGER_PLUGINS
from graftlm.contracts.stats import RequestStats, StatLogger, StepStats
from graftlm.frontend.stat_loggers import StatLoggerThread
from graftlm.plugins import current_host
from graftlm.plugins.spelling import counted
from graftlm.testing.conformance.front_end import FrontEndSuite

#: The server gives up after two seconds; a suite may run on a machine that is busy with something else.
_PATIENCE_S = 30


class StatLoggerConformance(FrontEndSuite):
    """Subclass it with `subject` naming a StatLogger class."""

    contract = "graftlm.contracts.stats.StatLogger"
    point = STAT_LOGGER_PLUGINS

    def test_it_is_a_stat_logger_class(self) -> None:
        """A subclass of StatLogger, constructed as StatLogger(config)."""
        cls = self.load()
        self.require(isinstance(cls, type) and issubclass(cls, StatLogger), f"it is {cls!r}")
        try:
            inspect.signature(cls).bind(EngineConfig())
        except TypeError as error:
            self.fail(f"it cannot be constructed as StatLogger(config): {error}")

    def test_it_takes_every_record(self) -> None:
        """`record` takes a step, finished requests, both or neither, and raises nothing; so do `log` and `close`,
        also when nothing was recorded.
        """
        with self._ready() as build:
            idle = build()
            self._call(idle, "log")
            self._call(idle, "close")
            busy = build()
            for step in (None, StepStats(), _busy_step()):
                for finished in ([], [_request("a")], [_request("b"), _unlucky_request()]):
                    self._call(busy, "record", step, finished)
                self._call(busy, "log")
            self._call(busy, "close")

    def test_records_are_left_unchanged(self) -> None:
        """Every stat logger gets the same objects: none may change them."""
        with self._ready() as build:
            stat_logger = build()
            step, finished = _busy_step(), [_request("a"), _unlucky_request()]
            before = copy.deepcopy((step, finished))
            self._call(stat_logger, "record", step, finished)
            self._call(stat_logger, "log")
            self._call(stat_logger, "close")
            same = msgspec.to_builtins(before) == msgspec.to_builtins((step, finished))
            self.require(same, "record changes the numbers it is given")

    def test_two_objects_share_nothing(self) -> None:
        """Each server of a process has its own: closing one leaves another at work."""
        with self._ready() as build:
            first, second = build(), build()
            self._call(first, "record", _busy_step(), [_request("a")])
            self._call(first, "close")
            self._call(second, "record", _busy_step(), [_request("b")])
            self._call(second, "log")
            self._call(second, "close")

    def test_it_works_in_its_own_thread(self) -> None:
        """The front end calls it from one thread of its own, a thousand records in a row, and ends with `close`."""
        with self._ready() as build:
            thread = StatLoggerThread(
                "conformance", build(), plugin=current_host().find(self.point, self.plugin), log_interval_s=0.01
            )
            for i in range(1000):
                thread.put(_busy_step(), [_request(str(i))] if i % 10 == 0 else [])
            thread.close()
            thread._thread.join(_PATIENCE_S)
            facts = thread.describe()
            self.require(
                facts["errors"] == 0, f"it raised {counted(facts['errors'], 'time')}, last {facts['last_error']}"
            )
            self.require(not thread._thread.is_alive(), f"it was still at work {_PATIENCE_S} s after its end")

    def _call(self, stat_logger: StatLogger, hook: str, *args: Any) -> None:
        try:
            with self.calling(current_host(), f"StatLogger.{hook}"):
                getattr(stat_logger, hook)(*args)
        except Exception as error:
            given = ", ".join(type(arg).__name__ for arg in args)
            self.fail(f"{hook}({given}) raises {type(error).__name__}: {error}")

    @contextmanager
    def _ready(self) -> Iterator[Callable[[], StatLogger]]:
        """Build as at start-up, then let the server be READY: nothing may be registered any more."""
        with self.host() as host:

            def build() -> StatLogger:
                host.frozen = False
                try:
                    with self.calling(host, "StatLogger.__init__"):
                        made: StatLogger = self.load()(_frozen_config())
                except Exception as error:
                    self.fail(f"its constructor raises {type(error).__name__}: {error}")
                host.frozen = True
                return made

            yield build


def _frozen_config() -> EngineConfig:
    config = EngineConfig()
    config.model.served_model_name = ["demo"]
    config.model.architecture = "LlamaForCausalLM"
    config.freeze()
    return config


def _busy_step() -> StepStats:
    return StepStats(
        num_running=3, num_waiting=1, kv_cache_usage=0.25, num_prompt_tokens=17, num_generation_tokens=3,
        prefix_cache_queries=40, prefix_cache_hits=10, step_time_s=0.01,
    )  # fmt: skip


def _request(request_id: str) -> RequestStats:
    return RequestStats(
        request_id=request_id, finish_reason="stop", num_prompt_tokens=12, num_cached_tokens=4,
        num_output_tokens=3, e2e_latency_s=0.5, time_to_first_token_s=0.1, inter_token_latencies_s=[0.2, 0.2],
        max_tokens=16,
    )  # fmt: skip


def _unlucky_request() -> RequestStats:
    """One that was aborted before its first token."""
    return RequestStats(
        request_id="unlucky", finish_reason="abort", num_prompt_tokens=0, num_cached_tokens=0, num_output_tokens=0,
        e2e_latency_s=0.0,
    )  # fmt: skip
