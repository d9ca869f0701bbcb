"""SIGINT and SIGTERM at any moment end the server with exit code 0 and leave nothing; running requests are told."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from live import Call, LiveServer, call_in_thread, wait_until

END_LIMIT_S = 5.0
ENDLESS = {"max_tokens": 30_000, "ignore_eos": True}
LONG_PROMPT = [i * 7 % 250 for i in range(24_000)]


@pytest.fixture
def start(long_llama: Path) -> Iterator[Callable[..., LiveServer]]:
    """Launch servers of two ranks that end with the test."""
    servers: list[LiveServer] = []

    def launch(*flags: str) -> LiveServer:
        servers.append(LiveServer(str(long_llama), "-tp", "2", *flags))
        servers[-1].launch()
        return servers[-1]

    yield launch

    for server in servers:
        server.stop()


def press_ctrl_c(server: LiveServer) -> None:
    """As a terminal does: the whole process group gets SIGINT."""
    os.killpg(server.pid, signal.SIGINT)


def ask_to_end(server: LiveServer) -> None:
    """As a supervisor does: only the process that it knows gets SIGTERM."""
    os.kill(server.pid, signal.SIGTERM)


@pytest.mark.parametrize("send", [press_ctrl_c, ask_to_end])
@pytest.mark.parametrize("between_s", [(0.0, 0.3), (0.3, 0.8), (0.8, 1.4), (1.4, 2.2)], ids=str)
def test_a_signal_at_any_moment_of_the_start(
    start: Callable[..., LiveServer], between_s: tuple[float, float], send: Callable[[LiveServer], None]
) -> None:
    """Another moment in each run, from the first line of our code on; nothing is said of it but that it ends."""
    delay_s = random.uniform(*between_s)
    server = start()
    wait_until(lambda: handles_sigterm(server.pid), step_s=0.001, what="the first line of our code")
    time.sleep(delay_s)
    send(server)

    check_end(server, f"{send.__name__} after {delay_s:.3f} s")


@pytest.mark.parametrize("send", [press_ctrl_c, ask_to_end])
def test_running_requests_get_an_error_at_once(
    start: Callable[..., LiveServer], send: Callable[[LiveServer], None]
) -> None:
    """Without --shutdown-timeout: a stream gets an error chunk and its end, a whole answer is a 503."""
    server = start()
    server.wait_ready()
    streams = [call_in_thread(server, [n, 2], stream=True, **ENDLESS) for n in range(3)]
    whole = call_in_thread(server, [1, 2], stream=False, **ENDLESS)
    wait_until(lambda: all(call.num_events() > 1 for call in streams), what="tokens")
    time.sleep(random.uniform(0, 0.3))
    send(server)

    check_end(server)
    for call in [*streams, whole]:
        assert call.ended.wait(1)
        assert call.error is not None
        assert call.error["code"] == "shutting_down"
    assert all(call.stream is not None and call.stream.done for call in streams)
    assert whole.status == 503


def test_a_signal_during_a_prefill(start: Callable[..., LiveServer]) -> None:
    """The engine is in the middle of a step that takes a second; requests that wait behind it are told too."""
    server = start()
    server.wait_ready()
    calls = [call_in_thread(server, LONG_PROMPT[n:], stream=bool(n % 2), max_tokens=4) for n in range(4)]
    time.sleep(0.7)
    ask_to_end(server)

    check_end(server)
    for call in calls:
        assert call.ended.wait(1)
        assert (call.status, (call.error or {}).get("code")) == (503, "shutting_down")


def test_the_shutdown_timeout_is_honoured(start: Callable[..., LiveServer]) -> None:
    """What ends in time ends as ever, new requests are refused, and what takes longer is cut when time is over."""
    server = start("--shutdown-timeout", "2.5")
    server.wait_ready()
    long = call_in_thread(server, [1, 2, 3], stream=True, **ENDLESS)
    short = call_in_thread(server, [4, 5, 6], stream=True, ignore_eos=True, max_tokens=60)
    wait_until(lambda: long.num_events() > 1 and short.num_events() > 1, what="tokens")
    ask_to_end(server)
    begun = time.monotonic()
    wait_until(lambda: not server.healthy(), what="the server to close")
    refused = server.post("/v1/completions", prompt="a")

    assert not long.ended.is_set()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) > 0
    check_end(server, limit_s=2.5 + END_LIMIT_S)
    assert short.ended.is_set()
    assert short.error is None
    assert short.stream is not None
    assert short.stream.events[-1]["choices"][0]["finish_reason"] == "length"
    assert long.error is not None
    assert long.error["code"] == "shutting_down"
    assert 2.4 < long.ended_at - begun < 3.5


def test_a_shutdown_waits_no_longer_than_for_the_last_request(start: Callable[..., LiveServer]) -> None:
    """A minute would be allowed; a connection that is open with nothing on it holds nobody up."""
    server = start("--shutdown-timeout", "60")
    server.wait_ready()
    with httpx.Client() as idle:
        idle.get(f"{server.base_url}/health")
        call = call_in_thread(server, [4, 5, 6], stream=True, ignore_eos=True, max_tokens=40)
        wait_until(lambda: call.num_events() > 1, what="tokens")
        ask_to_end(server)

        check_end(server, limit_s=END_LIMIT_S + 5)
    assert call.error is None


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole answer"])
def test_a_client_that_leaves_frees_its_request_within_a_step(tiny_server: LiveServer, stream: bool) -> None:
    """The request ends, and its blocks are free, before it can have got many tokens more."""
    body = {
        "model": tiny_server.model,
        "prompt": [1, 2, 3],
        "stream": stream,
        "max_tokens": 500,
        "ignore_eos": True,
    }
    before = tiny_server.metrics()["generation_tokens_total"]
    # With native kernels the whole answer takes a quarter of a second.
    with httpx.Client(timeout=1 if stream else 0.08) as http, pytest.raises(httpx.ReadTimeout):
        if not stream:
            http.post(f"{tiny_server.base_url}/v1/completions", json=body)
            pytest.fail("the answer was there before anybody could leave")
        with http.stream("POST", f"{tiny_server.base_url}/v1/completions", json=body) as response:
            next(response.iter_raw())
            raise httpx.ReadTimeout("enough")
    waited_s = wait_until(lambda: tiny_server.metrics()["num_requests_running"] == 0, limit_s=1, step_s=0)
    metrics = tiny_server.metrics()

    assert metrics["generation_tokens_total"] - before < 500
    assert metrics["kv_cache_usage_perc"] == 0
    assert waited_s < 0.5


def test_a_client_that_leaves_during_its_prefill(start: Callable[..., LiveServer]) -> None:
    """The step that runs is the last that computes for it: the next one serves who waits behind it."""
    server = start("--max-num-seqs", "1")
    server.wait_ready()
    body = {"model": server.model, "prompt": LONG_PROMPT, "max_tokens": 4}
    with httpx.Client(timeout=0.15) as http, pytest.raises(httpx.ReadTimeout):
        http.post(f"{server.base_url}/v1/completions", json=body)
    behind: Call = call_in_thread(server, [1, 2, 3], stream=True, max_tokens=1)

    assert behind.ended.wait(5)
    metrics = server.metrics()
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
    assert metrics["kv_cache_usage_perc"] == 0
    assert metrics["iteration_tokens_total_sum"] < len(LONG_PROMPT) / 2


def handles_sigterm(pid: int) -> bool:
    """Whether the process has a handler of its own, which the interpreter alone has not."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def check_end(server: LiveServer, what: str = "", *, limit_s: float = END_LIMIT_S) -> None:
    """Every process is gone in time, with exit code 0 and without a trace."""
    assert server.process is not None
    begun = time.monotonic()
    code = server.process.wait(limit_s)

    assert code == 0, f"{what}: {server.output}"
    wait_until(lambda: not server.processes(), limit_s=limit_s - (time.monotonic() - begun), what="all processes")
    assert server.leftovers() == [], f"{what}: {server.output}"
    assert not {"Traceback", "ERROR", "CRITICAL"} & set(server.output.split()), f"{what}: {server.output}"
