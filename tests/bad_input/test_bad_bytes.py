"""Bytes that are no request, or only half of one: the server answers or drops them, and serves on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from checkpoints import make_tiny_llama
from server import Server

BODY = b'{"prompt":"hi","max_tokens":2}'


def request(body: bytes = BODY, *, length: int | None = None, headers: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_tiny_llama(tmp_path_factory.mktemp("bad") / "llama")
    with Server([str(path)]) as running:
        yield running


@pytest.fixture
def port(server: Server) -> Iterator[int]:
    """The server's port; whatever a test did to it, a good request is answered afterwards."""
    yield server.port
    answer = httpx.post(f"{server.base_url}/v1/completions", json={"prompt": "hi", "max_tokens": 2}, timeout=200)
    assert answer.status_code == 200


def send(port: int, data: bytes, *, wait_s: float = 60.0, close: bool = False) -> bytes:
    """Send `data` and return what comes until the server closes, or nothing more comes for `wait_s`."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(wait_s)
        received = b""
        try:
            connection.sendall(data)
            if close:
                return b""
            while piece := connection.recv(65536):
                received += piece
        except (TimeoutError, ConnectionError):
            pass
        return received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", 400),
        (request(b"zz\r\n", headers=b"Transfer-Encoding: chunked\r\n"), 400),
        (request(b"", length=10**13, headers=b"Connection: close\r\n"), 413),
    ],
    ids=["garbage", "tls", "version", "negative-length", "two-lengths", "bad-chunk", "endless"],
)
def test_what_is_no_http_gets_an_error_in_the_usual_shape(data: bytes, status: int, port: int) -> None:
    """TLS to a plain port, lengths that cannot be, chunks that are none."""
    head, _, body = send(port, data).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_an_endless_head_is_cut_off(port: int) -> None:
    """A megabyte of headers does not become a megabyte of memory for as long as the caller likes."""
    data = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 2**20

    received = send(port, data)

    assert received == b"" or received.startswith(b"HTTP/1.1 431 "), received[:100]


@pytest.mark.parametrize("part", [0, 20, 60, len(request()) - 10])
def test_half_a_request_hurts_nobody(part: int, port: int) -> None:
    """Callers that stop in the middle: fifty that go away, and ten that stay while others are served."""
    data = request()[:part]
    for _ in range(50):
        send(port, data, close=True)
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
    for connection in waiting:
        connection.sendall(data)

    try:
        assert send(port, request(headers=b"Connection: close\r\n")).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in waiting:
            connection.close()


def test_callers_that_go_away_free_their_requests(port: int, server: Server) -> None:
    """Fifty that ask for much and close at once: soon nothing runs any more."""
    body = json.dumps({"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    for _ in range(50):
        send(port, request(body), close=True)

    deadline = time.monotonic() + 60
    while "graftlm:num_requests_running{" in (metrics := httpx.get(f"{server.base_url}/metrics").text):
        running = next(line for line in metrics.splitlines() if line.startswith("graftlm:num_requests_running{"))
        if float(running.split()[-1]) == 0:
            break
        assert time.monotonic() < deadline, running
        time.sleep(0.1)


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    """Three requests in one packet: three answers."""
    last = request(headers=b"Connection: close\r\n")

    assert send(port, request() * 2 + last).count(b"HTTP/1.1 200 OK") == 3


def test_a_slow_sender_and_a_slow_reader_are_served(port: int) -> None:
    """Byte by byte in, and a stream that nobody reads for a while."""
    stream = json.dumps({"prompt": "hi", "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
    with (
        socket.create_connection(("127.0.0.1", port)) as slow,
        socket.create_connection(("127.0.0.1", port)) as idle,
    ):
        idle.sendall(request(stream, headers=b"Connection: close\r\n"))
        for byte in request():
            slow.sendall(bytes([byte]))
        slow.settimeout(60)
        idle.settimeout(60)

        assert slow.recv(65536).startswith(b"HTTP/1.1 200 OK")
        received = b""
        while piece := idle.recv(65536):
            received += piece
        assert received.count(b"data: ") > 100
        assert b"data: [DONE]" in received


def test_a_caller_that_stalls_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while without a byte, in the middle of a request or before it; a running answer is not cut."""
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontend"))
    from http_harness import HttpServer, TalkingClient

    from graftlm.frontend.http.protocol import Protocol

    with HttpServer(TalkingClient(step_s=0.2)) as server:
        port = server.server_config.port
        monkeypatch.setattr(Protocol, "stall_s", 0.3)
        for part in (b"", request()[:-5]):
            with socket.create_connection(("127.0.0.1", port)) as stalled, suppress(ConnectionError):
                stalled.settimeout(60)
                stalled.sendall(part)
                assert stalled.recv(1) == b"", "it ends without an answer, and before this gives up"
        monkeypatch.setattr(Protocol, "stall_s", 3.0)
        whole = request(b'{"prompt":[1],"max_tokens":20}', headers=b"Connection: close\r\n")
        assert b"HTTP/1.1 200 OK" in send(port, whole)
