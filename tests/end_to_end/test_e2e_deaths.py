"""SIGKILL of any process at any moment: requests get an error, the server says why it ends, nothing stays."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import FRONT_END, PATIENCE_S, Call, LiveServer, call_in_thread, wait_until

VICTIMS = (FRONT_END, "engine core", "worker 0", "worker 1")
#: Far beyond what is waited for here.
TEN_MINUTES = "600"
ENDLESS = {"max_tokens": 8000, "ignore_eos": True}

#: Several steps of a fraction of a second each.
LONG_PROMPT = [i * 7 % 250 for i in range(24_000)]


@pytest.fixture
def start(long_llama: Path) -> Iterator[Callable[..., LiveServer]]:
    """Launch servers that end with the test."""
    servers: list[LiveServer] = []

    def launch(*flags: str) -> LiveServer:
        servers.append(LiveServer(str(long_llama), *flags))
        servers[-1].launch()
        return servers[-1]

    yield launch

    for server in servers:
        server.stop()


def test_death_while_the_server_starts(start: Callable[..., LiveServer], victim: str) -> None:
    """At another moment in each run, from when all processes are there until shortly before READY."""
    for attempt in range(5):
        server = start("-tp", "2")
        wait_until(lambda: server.processes().keys() >= set(VICTIMS), what="all processes")  # noqa: B023
        time.sleep(random.uniform(0, 0.8) / (attempt + 1))
        if not server.healthy():
            break
        server.stop()  # this test was held up, and the moment is over

    kill_and_check(server, victim, server.processes(), [])


def test_death_while_nothing_runs(start: Callable[..., LiveServer], victim: str) -> None:
    """No request is there to notice."""
    server = start("-tp", "2")
    server.wait_ready()

    kill_and_check(server, victim, server.processes(), [])


def test_death_during_a_prefill(start: Callable[..., LiveServer], victim: str) -> None:
    """A long prompt is being computed and another request waits behind it."""
    server = start("-tp", "2", "--max-num-seqs", "1")
    server.wait_ready()
    calls = [call_in_thread(server, LONG_PROMPT, stream=True, **ENDLESS)]
    wait_until(lambda: server.metrics()["num_requests_running"] == 1, what="its first step")
    calls.append(call_in_thread(server, LONG_PROMPT[::-1], stream=False, **ENDLESS))
    wait_until(lambda: server.metrics()["num_requests_waiting"] == 1, what="another step")

    kill_and_check(server, victim, server.processes(), calls)


def test_death_while_tokens_stream(start: Callable[..., LiveServer], victim: str) -> None:
    """A stream and a whole answer are under way."""
    server = start("-tp", "2")
    server.wait_ready()
    calls = streaming_calls(server)

    kill_and_check(server, victim, server.processes(), calls)


def test_death_during_the_shutdown(start: Callable[..., LiveServer], victim: str) -> None:
    """Running requests have ten minutes to end, which a death takes from them."""
    server = start("-tp", "2", "--shutdown-timeout", TEN_MINUTES)
    server.wait_ready()
    calls = streaming_calls(server)
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: not server.healthy(), what="the server to close")

    assert not any(call.ended.is_set() for call in calls)
    kill_and_check(server, victim, server.processes(), calls)


def test_death_of_the_core_that_has_the_worker_in_it(start: Callable[..., LiveServer]) -> None:
    """With one rank the engine core is the worker."""
    server = start()
    server.wait_ready()
    processes = server.processes()

    assert processes.keys() == {FRONT_END, "engine core"}
    kill_and_check(server, "engine core", processes, streaming_calls(server))


def test_death_of_the_front_end_while_the_fork_server_imports(start: Callable[..., LiveServer]) -> None:
    """The fork server has no thread that could watch, and notices all the same."""
    server = start("-tp", "2", "--start-method", "forkserver")
    wait_until(lambda: len(server.processes()) >= 2, what="the fork server")
    time.sleep(random.uniform(0, 0.5))

    kill_and_check(server, FRONT_END, server.processes(), [])


@pytest.mark.parametrize("victim", ["worker 1", "fork server"])
def test_death_among_forked_processes(start: Callable[..., LiveServer], victim: str) -> None:
    """Children of a fork server are watched as closely; without it nobody can watch them, so they end."""
    server = start("-tp", "2", "--start-method", "forkserver")
    server.wait_ready()
    ready = next(line for line in server.output.splitlines() if "engine ready" in line)
    processes = {name: int(pid) for name, pid in re.findall(r"'([\w ]+)': (\d+)", ready)}
    others = set(server.processes().values()) - {server.pid, *processes.values()}
    assert len(others) == 1
    processes["fork server"] = others.pop()

    kill_and_check(server, victim, processes, streaming_calls(server))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "victim" in metafunc.fixturenames and not list(metafunc.definition.iter_markers("parametrize")):
        metafunc.parametrize("victim", VICTIMS)


def streaming_calls(server: LiveServer) -> list[Call]:
    """A stream that has begun, and a whole answer that is being made; neither is near its end."""
    calls = [
        call_in_thread(server, [1, 2, 3], stream=stream, max_tokens=30_000, ignore_eos=True)
        for stream in (True, False)
    ]
    wait_until(lambda: server.metrics()["num_requests_running"] == len(calls), what="both requests to run")
    wait_until(lambda: calls[0].num_events() > 3, what="tokens")
    return calls


def kill_and_check(server: LiveServer, victim: str, processes: dict[str, int], calls: list[Call]) -> None:
    """Kill one process and see that the rules hold."""
    assert server.process is not None
    death = "the fork server, which watched it, is gone" if victim == "fork server" else "was killed by SIGKILL"
    os.kill(processes[victim], signal.SIGKILL)

    for call in calls:
        assert call.ended.wait(PATIENCE_S), f"no answer {PATIENCE_S} s after the death of {victim}"
        assert call.error is not None
        if victim == FRONT_END:
            assert call.error["code"] == "cut"
        else:
            assert call.error["code"] == "engine_dead", call.error
            assert victim in call.error["message"]
            assert death in call.error["message"]
    code = server.process.wait(PATIENCE_S)
    wait_until(lambda: not server.processes(), what=f"an end of {server.processes()}")
    assert server.leftovers() == []
    if victim == FRONT_END:
        assert code == -signal.SIGKILL
        return
    assert code == 1, server.output
    last = server.output.splitlines()[-1]
    assert victim in last
    assert death in last
    assert "Traceback" not in server.output
