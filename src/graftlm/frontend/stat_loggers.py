"""Feeds every stat logger from a thread of its own, so that none can slow the loop that makes tokens.

A logger that raises or falls behind is counted and shown, and stops nothing. It knows no number's meaning.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.contracts.points import STAT_LOGGER_PLUGINS
from graftlm.contracts.stats import RequestStats, StatLogger, StepStats
from graftlm.frontend.logging_stat_logger import LoggingStatLogger
from graftlm.plugins import Plugin, calling, record
from graftlm.plugins.call_times import timer_of
from graftlm.plugins.process_host import check_invariants
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.plugins.spelling import error_text

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)

StatsListener = Callable[[StepStats | None, list[RequestStats]], None]

LOG_INTERVAL_S = 10.0
_QUEUE_SIZE = 1024
_CLOSE_TIMEOUT_S = 2.0
_END = object()


class StatLoggerThread:
    """One stat logger with its queue and thread.

    `dropped` and `errors` count what it missed and what it raised, `seconds` is the time spent in its code.
    """

    def __init__(
        self, name: str, stat_logger: StatLogger, *, plugin: Plugin | None = None,
        log_interval_s: float = LOG_INTERVAL_S, queue_size: int = _QUEUE_SIZE,
    ) -> None:  # fmt: skip
        self.name = name
        self.dropped = 0
        self.errors = 0
        self.last_error: str | None = None
        self.seconds = 0.0
        self._called_at: float | None = None
        self._stat_logger = stat_logger
        self._plugin = plugin
        self._log_interval_s = log_interval_s
        self._queue: queue.Queue[Any] = queue.Queue(queue_size)
        self._logger = logging.getLogger(f"plugin.{name}")
        self._thread = threading.Thread(target=self._run, name=f"stat-logger-{name}", daemon=True)
        self._thread.start()

    def put(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        """Hand over without waiting; when the logger is too far behind, this step is lost to it and counted."""
        try:
            self._queue.put_nowait((step, finished))
        except queue.Full:
            self.dropped += 1
            if _is_worth_a_line(self.dropped):
                self._logger.warning("stat_logger_behind name=%s dropped=%d", self.name, self.dropped)

    def close(self) -> None:
        """Let it finish what is queued, call its `close`, and give up after two seconds."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        try:
            self._queue.put(_END, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            self._logger.warning("stat_logger_stuck name=%s", self.name)
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._logger.warning("stat_logger_stuck name=%s", self.name)

    def time_calls(self) -> None:
        """Time from now on what it costs whoever hands over, and its own code in its thread."""
        timer_of(self.label, kind="stat logger", hook="handing over").replace(self, "put")
        for hook in ("record", "log"):
            timer_of(self.label, kind="stat logger", hook=hook).replace(self._stat_logger, hook)

    @property
    def label(self) -> str:
        """What people see: distribution:name, or the bare name of one that no plugin brought."""
        return self._plugin.label if self._plugin is not None else self.name

    def describe(self) -> dict[str, Any]:
        """Say how it does; `seconds` counts the call in progress too, `waiting` what it has not yet taken."""
        called_at = self._called_at
        running_s = time.monotonic() - called_at if called_at is not None else 0.0
        return {
            "name": self.name, "label": self.label, "dropped": self.dropped, "errors": self.errors,
            "last_error": self.last_error, "waiting": self._queue.qsize(), "seconds": self.seconds + running_s,
        }  # fmt: skip

    def _run(self) -> None:
        due = time.monotonic() + self._log_interval_s
        while True:
            item = None
            with contextlib.suppress(queue.Empty):
                item = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            if item is _END:
                break
            if item is not None:
                self._call("record", *_copied(*item))
            if time.monotonic() >= due:
                self._call("log")
                due = time.monotonic() + self._log_interval_s
        self._call("close")

    def _call(self, hook: str, *arguments: Any) -> None:
        self._called_at = begun = time.monotonic()
        try:
            with calling(self._plugin or self.name, f"StatLogger.{hook}"):
                getattr(self._stat_logger, hook)(*arguments)
        except Exception as error:  # a plugin's fault: counted and shown, never passed on
            self.errors += 1
            self.last_error = error_text(error)
            if _is_worth_a_line(self.errors):
                self._logger.warning(
                    "stat_logger_failed name=%s hook=%s errors=%d", self.name, hook, self.errors, exc_info=True
                )
        finally:
            self.seconds += time.monotonic() - begun
            self._called_at = None


class StatsHub:
    """Takes every number once, on the event loop, and hands it to listeners and stat loggers."""

    def __init__(self, loggers: Iterable[StatLoggerThread] = ()) -> None:
        self.loggers = list(loggers)
        self._listeners: list[StatsListener] = []

    def add_listener(self, listener: StatsListener) -> None:
        """Call `listener` on the event loop with every record; it must be quick and must not raise."""
        self._listeners.append(listener)

    def record_step(self, step: StepStats) -> None:
        self.record(step, [])

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        for listener in self._listeners:
            listener(step, finished)
        for stat_logger in self.loggers:
            stat_logger.put(step, finished)

    def describe(self) -> list[dict[str, Any]]:
        """Say of each stat logger how it does."""
        return [stat_logger.describe() for stat_logger in self.loggers]

    def close(self) -> None:
        """End the threads; may wait for two seconds each."""
        loggers, self.loggers = self.loggers, []
        for stat_logger in loggers:
            stat_logger.close()


def build_stats_hub(config: EngineConfig, host: PluginHost | None) -> StatsHub:
    """Build the built-in stat logger, unless it is switched off, and those of the plugins.

    A plugin that was named and fails stops the start; one that was merely installed is shown and left out.
    """
    loggers = []
    if not config.observability.disable_log_stats:
        loggers.append(StatLoggerThread("log", LoggingStatLogger(config)))
    if host is None:
        return StatsHub(loggers)
    try:
        for plugin, target in host.load_all(STAT_LOGGER_PLUGINS):
            if (stat_logger := _build(plugin, target, config, host)) is not None:
                loggers.append(StatLoggerThread(plugin.name, stat_logger, plugin=plugin))
                if config.observability.time_plugin_calls:
                    loggers[-1].time_calls()
                record("stat_logger_loaded", plugin=plugin, cls=target)
    except BaseException:
        StatsHub(loggers).close()
        raise
    return StatsHub(loggers)


def _build(plugin: Plugin, target: Any, config: EngineConfig, host: PluginHost) -> StatLogger | None:
    cause: Exception
    if not (isinstance(target, type) and issubclass(target, StatLogger)):
        phase, cause = (
            "check of its type",
            TypeError(f"{plugin.value} is {target!r}, not a subclass of graftlm.contracts.stats.StatLogger"),
        )
    else:
        try:
            with calling_at_start(plugin, "StatLogger.__init__"):
                stat_logger = target(config)
                check_invariants()
                return stat_logger
        except Exception as error:
            phase, cause = "StatLogger.__init__", error
    failure = host.failed(plugin, phase=phase, cause=cause)
    if plugin.named:
        raise failure from cause
    logger.warning("plugin_failed %s", failure)
    return None


def _copied(step: StepStats | None, finished: list[RequestStats]) -> tuple[StepStats | None, list[RequestStats]]:
    """Copy a record for one consumer: what it changes, /metrics and the other consumers do not see."""
    return copy.copy(step), [
        msgspec.structs.replace(request, inter_token_latencies_s=list(request.inter_token_latencies_s))
        for request in finished
    ]


def _is_worth_a_line(count: int) -> bool:
    """True at 1, 10, 100, …: a fault that repeats with each step must not fill the disk."""
    return str(count).rstrip("0") == "1"
