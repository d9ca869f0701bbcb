"""WebSocket routes of endpoint plugins: under the API key, named when they fail, refused where they cannot be."""

from __future__ import annotations

import importlib.util
from typing import Any

import httpx
import pytest
from endpoint_fakes import host_of
from fastapi import APIRouter, HTTPException, WebSocket
from http_harness import HttpServer
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.errors import EngineDead
from graftlm.plugins import PluginFailed


class Talker(EndpointPlugin):
    """Echoes, and fails before and after it accepts."""

    def attach_router(self, router: APIRouter) -> None:
        inner = APIRouter()
        inner.add_api_websocket_route("/echo", self.echo)
        inner.add_api_websocket_route("/early", self.early)
        inner.add_api_websocket_route("/late", self.late)
        inner.add_api_websocket_route("/refused", self.refused)
        inner.add_api_websocket_route("/dead", self.dead)
        router.include_router(inner)

    async def echo(self, websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send_text(await websocket.receive_text())

    async def early(self, websocket: WebSocket) -> None:
        raise ValueError("no words")

    async def late(self, websocket: WebSocket) -> None:
        await websocket.accept()
        raise ValueError("no words left " * 20)

    async def refused(self, websocket: WebSocket) -> None:
        raise HTTPException(403, "not you")

    async def dead(self, websocket: WebSocket) -> None:
        await websocket.accept()
        raise EngineDead("out of memory")


def open_socket(server: HttpServer, path: str, **headers: str) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + f"/plugins/talker{path}", additional_headers=headers)


def errors_of(server: HttpServer) -> str:
    return httpx.get(f"{server.url}/metrics").text


def test_a_websocket_of_a_plugin_talks_until_the_client_leaves() -> None:
    """A client that leaves is no error of the plugin."""
    with HttpServer(plugin_host=host_of(talker=Talker)) as server:
        with open_socket(server, "/echo") as socket:
            socket.send("hello")
            assert socket.recv(timeout=60) == "hello"

        assert "plugin_errors_total{" not in errors_of(server)


def test_a_websocket_needs_the_api_key_unless_a_flag_opens_the_plugin() -> None:
    """The same rule and the same answer as for every route."""
    with HttpServer(plugin_host=host_of(talker=Talker), api_key=["k"]) as server:
        with pytest.raises(InvalidStatus) as refused:
            open_socket(server, "/echo")
        with open_socket(server, "/echo", Authorization="Bearer k") as socket:
            socket.send("hello")
            assert socket.recv(timeout=60) == "hello"
    with HttpServer(plugin_host=host_of(talker=Talker), api_key=["k"], endpoint_no_auth=["talker"]) as server:
        open_socket(server, "/echo").close()

    assert refused.value.response.status_code == 401
    assert b"invalid_api_key" in refused.value.response.body


def test_what_fails_before_it_is_accepted_is_a_500_that_names_the_plugin() -> None:
    """As an answer, counted."""
    with HttpServer(plugin_host=host_of(talker=Talker)) as server:
        with pytest.raises(InvalidStatus) as refused:
            open_socket(server, "/early")
        metrics = errors_of(server)

    assert refused.value.response.status_code == 500
    assert b"'talker' of talker-dist 1.2" in refused.value.response.body
    assert 'graftlm:plugin_errors_total{plugin="talker-dist:talker"} 1.0' in metrics


def test_what_fails_later_closes_with_the_plugins_name() -> None:
    """Code 1011, and as much of the sentence as a close frame holds."""
    with (
        HttpServer(plugin_host=host_of(talker=Talker)) as server,
        pytest.raises(ConnectionClosed) as closed,
        open_socket(server, "/late") as socket,
    ):
        socket.recv(timeout=60)

    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
    assert "'talker' of talker-dist 1.2" in closed.value.rcvd.reason


def test_errors_that_say_how_they_end_are_told_as_they_say() -> None:
    """An HTTPException is an answer with its status; an error of the engine closes with its sentence."""
    with HttpServer(plugin_host=host_of(talker=Talker)) as server:
        with pytest.raises(InvalidStatus) as refused:
            open_socket(server, "/refused")
        with pytest.raises(ConnectionClosed) as closed, open_socket(server, "/dead") as socket:
            socket.recv(timeout=60)

    assert refused.value.response.status_code == 403 and b"not you" in refused.value.response.body
    assert closed.value.rcvd is not None and "out of memory" in closed.value.rcvd.reason


def test_a_path_that_nobody_has_is_no_websocket() -> None:
    """It is refused before it is accepted."""
    with HttpServer(plugin_host=host_of(talker=Talker)) as server, pytest.raises(InvalidStatus) as refused:
        open_socket(server, "/nothing")

    assert refused.value.response.status_code in (403, 404)


def test_without_a_library_for_websockets_the_start_is_refused(monkeypatch) -> None:
    """A route that could only answer 404 is not attached: the plugin is named, and what to install."""
    find_spec = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name in ("websockets", "wsproto") else find_spec(name, *rest)

    monkeypatch.setattr("importlib.util.find_spec", without)
    server = HttpServer(plugin_host=host_of(talker=Talker))
    server._run()

    assert isinstance(server.error, PluginFailed)
    assert "'talker' of talker-dist 1.2" in str(server.error)
    assert "'/echo' is a WebSocket" in str(server.error) and "pip install websockets" in str(server.error)
