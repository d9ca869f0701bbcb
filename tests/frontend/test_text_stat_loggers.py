"""Stat loggers: fed from threads of their own, isolated, counted; and how plugins become one."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec
import pytest

from graftlm.config import EngineConfig
from graftlm.contracts.points import ALL_POINTS
from graftlm.contracts.stats import RequestStats, StatLogger, StepStats
from graftlm.frontend import stat_loggers
from graftlm.frontend.logging_stat_logger import LoggingStatLogger
from graftlm.frontend.stat_loggers import StatLoggerThread, StatsHub, build_stats_hub
from graftlm.plugins import Plugin, PluginFailed, Role
from graftlm.plugins.host import PluginHost
from graftlm.plugins.selection import Decision

FINISHED = RequestStats(
    request_id="a", finish_reason="stop", num_prompt_tokens=3, num_cached_tokens=0, num_output_tokens=2,
    e2e_latency_s=0.1,
)  # fmt: skip


class Recorder(StatLogger):
    """Writes down what it gets and in which thread."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.seen: list[Any] = []

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        self.seen.append((step, finished, threading.current_thread().name))

    def close(self) -> None:
        self.seen.append("closed")


class Raising(Recorder):
    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        raise RuntimeError("no disk")


class Blocking(Recorder):
    gate = threading.Event()

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        self.gate.wait(60)


class BrokenConstructor(StatLogger):
    def __init__(self, config: EngineConfig) -> None:
        raise OSError("no network")


NOT_A_CLASS = object()


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for the threads as long as a busy machine may need."""
    monkeypatch.setattr(stat_loggers, "_CLOSE_TIMEOUT_S", 60.0)


def test_records_arrive_in_order_in_another_thread_and_close_comes_last() -> None:
    """What the loop hands over reaches the logger in its own thread; closing lets it finish."""
    recorder = Recorder(EngineConfig())
    hub = StatsHub([StatLoggerThread("mine", recorder)])
    hub.record_step(StepStats(num_running=1))
    hub.record(None, [FINISHED])
    hub.close()

    first, second, last = recorder.seen
    assert first == (StepStats(num_running=1), [], "stat-logger-mine")
    assert second == (None, [FINISHED], "stat-logger-mine")
    assert last == "closed"


def test_what_one_logger_changes_nobody_else_sees() -> None:
    """Records are each logger's own: /metrics and the log show what the engine counted."""
    done = threading.Event()

    class Meddler(Recorder):
        def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
            assert step is not None
            step.num_running = 99
            finished[0].inter_token_latencies_s.append(99.0)
            finished[0].num_output_tokens = 99
            finished.clear()
            done.set()

    class Waiting(Recorder):
        def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
            assert done.wait(60)
            super().record(step, finished)

    other = Waiting(EngineConfig())
    step, finished = StepStats(num_running=1), [msgspec.structs.replace(FINISHED)]
    hub = StatsHub([StatLoggerThread("meddler", Meddler(EngineConfig())), StatLoggerThread("other", other)])
    hub.record(step, finished)
    hub.close()

    assert other.seen[0][:2] == (StepStats(num_running=1), [FINISHED])
    assert (step.num_running, finished) == (1, [FINISHED])


def test_one_that_raises_is_counted_and_its_neighbours_go_on() -> None:
    """An exception is counted, kept for people to read, and reaches nobody else."""
    recorder = Recorder(EngineConfig())
    hub = StatsHub([StatLoggerThread("bad", Raising(EngineConfig())), StatLoggerThread("good", recorder)])
    for _ in range(3):
        hub.record_step(StepStats())
    hub.close()

    assert len(recorder.seen) == 4


def test_one_that_blocks_loses_records_and_slows_nobody() -> None:
    """With its queue full the rest is dropped and counted, and handing over waits for nobody."""
    thread = StatLoggerThread("slow", Blocking(EngineConfig()), queue_size=4)
    hub = StatsHub([thread])
    for _ in range(100):
        hub.record_step(StepStats())
    assert not Blocking.gate.is_set()
    (facts,) = hub.describe()
    Blocking.gate.set()
    hub.close()

    assert facts["dropped"] >= 94 and facts["name"] == "slow"


def test_listeners_hear_at_once_in_the_callers_thread() -> None:
    """A listener, unlike a logger, is called before `record` returns."""
    hub = StatsHub()
    heard: list[Any] = []
    hub.add_listener(lambda step, finished: heard.append((step, finished)))
    hub.record(None, [FINISHED])

    assert heard == [(None, [FINISHED])]


def test_throughput_is_logged_only_while_there_is_traffic(caplog: pytest.LogCaptureFixture) -> None:
    """The built-in logger says one line about the time since the last one, and nothing when nothing happened."""
    stat_logger = LoggingStatLogger(EngineConfig())
    caplog.set_level(logging.INFO, logger="graftlm")
    stat_logger.log()
    step = StepStats(num_running=2, num_generation_tokens=8, prefix_cache_queries=4, prefix_cache_hits=1)
    stat_logger.record(step, [])
    stat_logger.record(None, [FINISHED])
    stat_logger.log()
    stat_logger.log()

    (line,) = [r.getMessage() for r in caplog.records]
    assert "running=2" in line and "finished=1" in line and "prefix_cache_hit_rate=25.0%" in line


def test_log_is_called_on_its_own_clock() -> None:
    """The logger may speak although no records come."""
    called = threading.Event()

    class Speaking(Recorder):
        def log(self) -> None:
            called.set()

    thread = StatLoggerThread("speaking", Speaking(EngineConfig()), log_interval_s=0.02)

    assert called.wait(60)
    thread.close()


def host_with(*values: str, named: bool = False) -> PluginHost:
    plugins = [
        Plugin(
            point="stat_logger_plugins", name=f"logger{i}", value=f"{__name__}:{value}",
            distribution="acme-stats", version="1.2", named=named,
        )
        for i, value in enumerate(values)
    ]  # fmt: skip
    decisions = [Decision(plugin, "on", "") for plugin in plugins]
    return PluginHost(ALL_POINTS, role=Role.FRONTEND, process="frontend", decisions=decisions)


def test_plugins_are_built_beside_the_built_in_one() -> None:
    """Each plugin gets the config and a thread; --disable-log-stats leaves only the plugins."""
    config = EngineConfig()
    hub = build_stats_hub(config, host_with("Recorder"))
    config.observability.disable_log_stats = True
    quiet = build_stats_hub(config, host_with("Recorder"))
    names = [[logger.name for logger in h.loggers] for h in (hub, quiet)]
    hub.close()
    quiet.close()

    assert names == [["log", "logger0"], ["logger0"]]


@pytest.mark.parametrize(
    ("value", "says"),
    [("NOT_A_CLASS", "not a subclass"), ("BrokenConstructor", "no network"), ("Nothing", "Nothing")],
)
def test_a_wrong_plugin_is_named_and_stops_the_start_only_if_it_was_asked_for(
    value: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Named on the command line it is an error; merely installed it is a warning, listed as failed."""
    with pytest.raises(PluginFailed, match=rf"(?s)logger0.*acme-stats.*1\.2.*{says}"):
        build_stats_hub(EngineConfig(), host_with(value, named=True))
    host = host_with(value)
    hub = build_stats_hub(EngineConfig(), host)
    names = [logger.name for logger in hub.loggers]
    hub.close()

    assert names == ["log"]
    assert "acme-stats" in caplog.text and says in caplog.text
    assert next(iter(host.outcomes.values())).state == "failed"
