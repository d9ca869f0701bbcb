"""The life of the server: from the bound port over the start to each kind of end."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from http_harness import PATIENCE_S, HttpServer, TalkingClient, byte_tokenizer, free_port, read_events, wait_for

from graftlm.contracts.errors import StartupError
from graftlm.frontend.async_llm import AsyncLLM
from graftlm.frontend.tokenizer import Tokenizer

LONG = {"prompt": "abc", "max_tokens": 150, "stream": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("tok"))


def pausing() -> TalkingClient:
    return TalkingClient(pauses=True)


def test_a_port_in_use_is_refused_with_the_cure(tokenizer: Tokenizer) -> None:
    """Before anything is started, naming the port and --port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = HttpServer(port=other.getsockname()[1])
        server._run()

    assert isinstance(server.error, StartupError)
    assert "--port" in str(server.error)
    assert str(server.server_config.port) in str(server.error)


def test_a_host_that_is_not_ours_is_refused_with_the_cure() -> None:
    """A name that does not exist, and an address of another machine."""
    for host in ("no.such.host.invalid", "192.0.2.1"):
        server = HttpServer(host=host)
        server._run()

        assert isinstance(server.error, StartupError)
        assert "127.0.0.1" in str(server.error)


def test_port_0_takes_a_free_one_and_says_which(caplog: pytest.LogCaptureFixture) -> None:
    """The INFO line has the address that one can open."""
    caplog.set_level(logging.INFO, logger="graftlm")
    server = HttpServer(port=0)
    server._thread.start()
    wait_for(lambda: "ready url=" in caplog.text)
    url = caplog.text.split("ready url=")[1].split()[0]

    assert httpx.get(f"{url}/health").json() == {"status": "ready", "reason": None}
    assert server.stop() == 0


def test_it_answers_503_with_the_reason_until_the_engine_is_ready(tokenizer: Tokenizer) -> None:
    """/health tells what the engine does; /version answers already; requests are told to come again."""
    goes_on = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def start(on_status: Callable[[str], None]) -> AsyncLLM:
        loops.append(asyncio.get_running_loop())
        on_status("loading weights")
        await goes_on.wait()
        return server.build_llm()

    server = HttpServer(start=start, tokenizer=tokenizer).launch()
    health = httpx.get(f"{server.url}/health")
    refused = server.post("/v1/completions", prompt="a")

    assert health.status_code == 503
    assert health.json() == {"status": "starting", "reason": "loading weights"}
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert "loading weights" in refused.json()["error"]["message"]
    assert httpx.get(f"{server.url}/v1/models").status_code == 503
    assert httpx.get(f"{server.url}/version").status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    loops[0].call_soon_threadsafe(goes_on.set)
    wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    assert server.stop() == 0


def test_what_the_start_raises_is_raised_by_serve() -> None:
    """Whoever called serve prints it; the port is free again."""

    async def start(on_status: Callable[[str], None]) -> AsyncLLM:
        await asyncio.sleep(0.05)
        raise StartupError("no such checkpoint")

    server = HttpServer(start=start)
    server._run()

    assert isinstance(server.error, StartupError)
    socket.create_server(("127.0.0.1", server.server_config.port)).close()


def test_a_signal_during_the_start_ends_it_with_exit_code_0() -> None:
    """The start is cancelled, and may clean up."""
    cleaned = []

    async def start(on_status: Callable[[str], None]) -> AsyncLLM:
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)
        raise AssertionError

    server = HttpServer(start=start).launch()

    assert server.stop() == 0
    assert cleaned == [True]


def test_a_shutdown_lets_requests_end_within_the_timeout(tokenizer: Tokenizer) -> None:
    """New ones are refused with 503 meanwhile, /health says so, and the exit code is 0."""
    with (
        HttpServer(pausing(), tokenizer=tokenizer, shutdown_timeout=PATIENCE_S) as server,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):
        with http.stream("POST", f"{server.url}/v1/completions", json={**LONG, "max_tokens": 50}) as response:
            events = response.iter_lines()
            next(events)
            server.shutdown.request("TEST")
            wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            refused = server.post("/v1/completions", prompt="a")
            server.client.goes_on.set()
            rest = list(events)

        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert rest[-2] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-4]
        assert server.wait() == 0
        assert server.client.shut_down


def test_a_shutdown_without_timeout_aborts_with_an_error_chunk(tokenizer: Tokenizer) -> None:
    """Streams get an error chunk and [DONE], whole answers a 503; the engine's requests are freed."""
    with HttpServer(pausing(), tokenizer=tokenizer) as server, httpx.Client(timeout=PATIENCE_S) as http:
        with http.stream("POST", f"{server.url}/v1/completions", json=LONG) as response:
            events = response.iter_lines()
            next(events)
            server.shutdown.request("TEST")
            rest = [line for line in events if line]

        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert rest[-1] == "data: [DONE]"
        assert server.wait() == 0
        assert len(server.client.left) == 1


def test_the_engines_death_ends_streams_and_the_server(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """In-flight requests get the cause at once; the exit code is 1, the cause the last words."""
    caplog.set_level(logging.INFO, logger="graftlm")
    with HttpServer(pausing(), tokenizer=tokenizer) as server, httpx.Client(timeout=PATIENCE_S) as http:
        with http.stream("POST", f"{server.url}/v1/completions", json=LONG) as response:
            events = response.iter_lines()
            next(events)
            server.client.dead = "worker 1 was killed by signal 9"
            rest = [line for line in events if line]

        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        assert "worker 1 was killed" in error["message"]
        assert server.wait() == 1
        assert "worker 1 was killed by signal 9" in caplog.records[-1].getMessage()


def test_calls_that_the_dead_engine_leaves_hanging_are_cut(tokenizer: Tokenizer) -> None:
    """Even when the engine client raises nothing, a whole answer becomes a 500."""
    client = TalkingClient(step_s=1000)
    with HttpServer(client, tokenizer=tokenizer) as server, httpx.Client(timeout=PATIENCE_S) as http:
        with http.stream("GET", f"{server.url}/health") as health:
            assert health.status_code == 200
        sender = _Background(lambda: server.post("/v1/completions", prompt="abc"))
        wait_for(lambda: bool(client.running))
        client.dead = "gone"

        assert server.wait() == 1
        response = sender.result()
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_dead"


@pytest.mark.parametrize(
    ("stream", "begun"), [(True, True), (False, True), (True, False)], ids=["stream", "whole", "first token"]
)
def test_a_client_that_leaves_frees_its_request(tokenizer: Tokenizer, stream: bool, begun: bool) -> None:
    """Closing the socket aborts the engine's work, streaming or not, also before there is a first token."""
    client = pausing() if begun else TalkingClient(step_s=1000)
    with HttpServer(client, tokenizer=tokenizer) as server:
        body = json.dumps({**LONG, "stream": stream, "n": 2}).encode()
        with socket.create_connection(("127.0.0.1", server.server_config.port)) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_for(lambda: len(client.running) == 2)
            if stream and begun:
                assert connection.recv(1)

        wait_for(lambda: not client.running)
        assert len(client.left) == 2
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_an_engine_error_in_a_stream_is_its_last_chunk(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is long sent, so the error comes as a chunk before [DONE]."""

    async def broken(self: TalkingClient, request: object) -> object:
        async for update in original(self, request):  # type: ignore[arg-type]
            yield update
            raise RuntimeError("a bug")

    original = TalkingClient.generate
    monkeypatch.setattr(TalkingClient, "generate", broken)
    with HttpServer(tokenizer=tokenizer) as server:
        events = read_events(server.post("/v1/completions", **LONG))

        assert json.loads(events[-2])["error"]["code"] == "internal_error"
        assert events[-1] == "[DONE]"
        assert server.stop() == 0


def test_two_servers_on_one_port_are_impossible(tmp_path: Path) -> None:
    """The second bind fails even before the first accepts."""
    from graftlm.config import ServerConfig
    from graftlm.frontend.http.listener import bind

    config = ServerConfig(port=free_port())
    with bind(config), pytest.raises(StartupError, match="--port 0"):
        bind(config)


class _Background:
    """One call in a thread, with its result."""

    def __init__(self, call: Callable[[], httpx.Response]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(call)
        self._pool.shutdown(wait=False)

    def result(self) -> httpx.Response:
        return self._future.result(timeout=PATIENCE_S)
