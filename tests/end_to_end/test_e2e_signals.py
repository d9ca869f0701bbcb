"""SIGINT and SIGTERM at any moment end the server with exit code 0 and leave nothing; running requests are told."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import PATIENCE_S, Call, LiveServer, call_in_thread, wait_until

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
    wait_until(lambda: server.metrics()["num_requests_running"] == 4, what="all requests to run")
    wait_until(lambda: all(call.num_events() > 1 for call in streams), what="tokens")
    time.sleep(random.uniform(0, 0.3))
    send(server)

    check_end(server)
    for call in [*streams, whole]:
        assert call.ended.wait(PATIENCE_S)
        assert call.error is not None
        assert call.error["code"] == "shutting_down"
    assert all(call.stream is not None and call.stream.done for call in streams)
    assert whole.status == 503


def test_a_signal_during_a_prefill(start: Callable[..., LiveServer]) -> None:
    """The engine is in the middle of a step that takes its time; requests that wait behind it are told too."""
    server = start("--max-num-seqs", "1")
    server.wait_ready()
    calls = [call_in_thread(server, LONG_PROMPT, stream=False, max_tokens=8000, ignore_eos=True)]
    wait_until(lambda: server.metrics()["num_requests_running"] == 1, what="its first step")
    calls += [call_in_thread(server, LONG_PROMPT[n:], stream=bool(n % 2), max_tokens=4) for n in (1, 2, 3)]
    wait_until(lambda: server.metrics()["num_requests_waiting"] == 3, what="another step")
    ask_to_end(server)

    check_end(server)
    for call in calls:
        assert call.ended.wait(PATIENCE_S)
        assert (call.status, (call.error or {}).get("code")) == (503, "shutting_down")


def test_the_shutdown_timeout_is_honoured(start: Callable[..., LiveServer]) -> None:
    """What ends in time ends as ever, new requests are refused, and what takes longer is cut when time is over."""
    server = start("--shutdown-timeout", "8")
    server.wait_ready()
    long = call_in_thread(server, [1, 2, 3], stream=True, **ENDLESS)
    short = call_in_thread(server, [4, 5, 6], stream=True, ignore_eos=True, max_tokens=60)
    wait_until(lambda: long.num_events() > 1 and short.num_events() > 1, what="tokens")
    begun = time.monotonic()
    ask_to_end(server)
    wait_until(lambda: not server.healthy(), what="the server to close")
    refused = server.post("/v1/completions", prompt="a")

    assert not long.ended.is_set()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) > 0
    assert long.ended.wait(PATIENCE_S)
    assert time.monotonic() - begun >= 8  # and of how much more the machine decides: it would go on for longer
    check_end(server)
    assert short.ended.wait(PATIENCE_S)
    assert short.error is None
    assert short.stream is not None
    assert short.stream.events[-1]["choices"][0]["finish_reason"] == "length"
    assert long.error is not None
    assert long.error["code"] == "shutting_down"


def test_a_shutdown_waits_no_longer_than_for_the_last_request(start: Callable[..., LiveServer]) -> None:
    """Ten minutes would be allowed; a connection that is open with nothing on it holds nobody up."""
    server = start("--shutdown-timeout", "600")
    server.wait_ready()
    with httpx.Client() as idle:
        idle.get(f"{server.base_url}/health")
        call = call_in_thread(server, [4, 5, 6], stream=True, ignore_eos=True, max_tokens=40)
        wait_until(lambda: call.num_events() > 1, what="tokens")
        ask_to_end(server)

        check_end(server)
    assert call.ended.wait(PATIENCE_S)
    assert call.error is None


@contextmanager
def unread(server: LiveServer, prompt: list[int], **fields: Any) -> Iterator[None]:
    """A request whose answer nobody reads; leaving the block closes the connection."""
    body = json.dumps({"model": server.model, "prompt": prompt, **fields}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall((head % len(body)).encode() + body)
        yield


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole answer"])
def test_a_client_that_leaves_frees_its_request(start: Callable[..., LiveServer], stream: bool) -> None:
    """The request ends, and its blocks are free, before it can have got all of its tokens."""
    server = start()
    server.wait_ready()
    with unread(server, [1, 2, 3], stream=stream, **ENDLESS):
        wait_until(lambda: server.metrics()["generation_tokens_total"] > 0, what="its first token")
    wait_until(lambda: server.metrics()["num_requests_running"] == 0, what="its end")
    metrics = server.metrics()

    assert metrics["generation_tokens_total"] < ENDLESS["max_tokens"]
    assert metrics["kv_cache_usage_perc"] == 0


def test_a_client_that_leaves_during_its_prefill(start: Callable[..., LiveServer]) -> None:
    """The step that runs is the last that computes for it: the next one serves who waits behind it."""
    server = start("--max-num-seqs", "1", "--max-num-batched-tokens", "8")  # thousands of steps
    server.wait_ready()
    with unread(server, LONG_PROMPT, max_tokens=4):
        wait_until(lambda: server.metrics()["iteration_tokens_total_sum"] > 0, what="its first step")
    behind: Call = call_in_thread(server, [1, 2, 3], stream=True, max_tokens=1)

    assert behind.ended.wait(PATIENCE_S)
    metrics = server.metrics()
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
    assert metrics["kv_cache_usage_perc"] == 0
    assert metrics["iteration_tokens_total_sum"] < len(LONG_PROMPT)


def handles_sigterm(pid: int) -> bool:
    """Whether the process has a handler of its own, which the interpreter alone has not."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def check_end(server: LiveServer, what: str = "") -> None:
    """Every process is gone, with exit code 0 and without a trace."""
    assert server.process is not None
    code = server.process.wait(PATIENCE_S)

    assert code == 0, f"{what}: {server.output}"
    wait_until(lambda: not server.processes(), what="all processes")
    assert server.leftovers() == [], f"{what}: {server.output}"
    assert not {"Traceback", "ERROR", "CRITICAL"} & set(server.output.split()), f"{what}: {server.output}"
