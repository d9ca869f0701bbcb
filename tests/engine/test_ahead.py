"""Processes started ahead of the plan: taken when they would be started the same way now, replaced otherwise."""

from __future__ import annotations

import time

import msgspec
import pytest

from graftlm.config.engine_config import EngineConfig
from graftlm.engine import core_child
from graftlm.executor import workers_ahead
from graftlm.processes.liveness import is_running
from graftlm.processes.threads import thread_environment


@pytest.fixture
def taken():
    """Cores that a test took, ended with it."""
    cores: list[core_child.CoreChild] = []
    yield cores
    core_child.discard()
    for core in cores:
        core.child.kill()
        core.stop(1)


def pid_ahead() -> int:
    assert core_child._ahead is not None
    return core_child._ahead[1].child.pid


@pytest.mark.parametrize("change", ["nothing", "environment", "search path", "number of workers"])
def test_a_core_is_taken_only_if_it_inherited_the_same(change, taken, monkeypatch, caplog):
    """A variable that a plugin set meanwhile reaches the engine, for the price of another start."""
    caplog.set_level("INFO", logger="graftlm")
    core_child.prestart()
    early = pid_ahead()
    config = EngineConfig()
    match change:
        case "environment":
            monkeypatch.setenv("A_PLUGIN_SET_THIS", "1")
        case "search path":
            monkeypatch.syspath_prepend("somewhere")
        case "number of workers":
            config.parallel.tensor_parallel_size = 2

    taken.append(core_child.take_core_child(config))

    assert (taken[0].child.pid == early) is (change == "nothing")
    assert is_running(early) if change == "nothing" else _ends(early)
    assert ("A_PLUGIN_SET_THIS" in caplog.text) is (change == "environment")
    assert core_child._ahead is None


def test_workers_are_taken_by_rank(monkeypatch):
    """Each once; one that inherited something else is ended."""
    workers_ahead.prestart_workers(msgspec.msgpack.encode(workers_ahead.WorkersAhead(num_workers=2)))
    own = thread_environment(2)
    first = workers_ahead.take_worker(0, own)
    try:
        assert first is not None
        assert first.name == "worker 0"
        assert workers_ahead.take_worker(0, own) is None
        second = workers_ahead._ahead["worker 1"][1].pid
        monkeypatch.setenv("A_PLUGIN_SET_THIS", "1")
        assert workers_ahead.take_worker(1, own) is None
        assert _ends(second)
    finally:
        if first is not None:
            first.kill()
            first.stop(1)


def _ends(pid: int) -> bool:
    """Wait for the end of a process that was killed, which a busy machine may hold up."""
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)
