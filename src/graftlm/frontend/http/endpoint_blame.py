"""Names an endpoint plugin when the code of one of its routes fails, logs it and counts it; plain ASGI.

Only requests that a plugin answers are looked at; all others pass untouched, unless --time-plugin-calls asks what
they take beside a plugin's.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from graftlm.contracts.errors import StartupError
from graftlm.frontend.http.errors import ClientGone, EndpointFailed, error_response
from graftlm.frontend.http.websocket_ends import INTERNAL_ERROR, reason_of, refuse
from graftlm.plugins import Plugin, calling, find_host
from graftlm.plugins.call_times import timer_of
from graftlm.plugins.process_host import check_invariants

if TYPE_CHECKING:
    from graftlm.frontend.http.state import ServerState

#: Key of a connection's scope: the plugin that answers it.
OWNER = "graftlm.plugin"

_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class EndpointBlame:
    """Turns an exception of a plugin's route into a 500, or a closed WebSocket, that names the plugin."""

    def __init__(self, app: ASGIApp, *, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(scope)
        if self._state.config.observability.time_plugin_calls:
            await self._time(owner, scope, receive, send)
        elif owner is None:
            await self._app(scope, receive, send)
        else:
            await self._answer(owner, scope, receive, send)

    async def _time(self, owner: Plugin | None, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.perf_counter_ns()
        try:
            if owner is None:
                await self._app(scope, receive, send)
            else:
                await self._answer(owner, scope, receive, send)
        finally:
            if hook := _route_of(scope):
                timer = timer_of(owner or "graftlm", kind="endpoint" if owner else "core route", hook=hook)
                timer.add(time.perf_counter_ns() - begun)

    async def _answer(self, owner: Plugin, scope: Scope, receive: Receive, send: Send) -> None:
        scope[OWNER] = owner
        answer = _Watched(send)
        begun = time.monotonic()
        try:
            with calling(owner, "endpoint"):
                await self._app(scope, receive, answer.send)
        except ClientGone:
            raise
        except WebSocketDisconnect:
            logging.getLogger(f"plugin.{owner.name}").debug("websocket_left path=%s", scope.get("path"))
        except Exception as error:
            self._state.metrics.count_plugin_error(owner.label)
            logging.getLogger(f"plugin.{owner.name}").exception("endpoint_failed path=%s", scope.get("path"))
            failure = EndpointFailed(owner.description, error)
            if scope["type"] == "websocket":
                await _end_websocket(failure, answer, scope, receive, send)
            elif answer.started:
                raise
            else:
                await error_response(failure)(scope, receive, send)
        finally:
            self._state.metrics.count_plugin_call(owner.label, time.monotonic() - begun)
            self._tell_changes(owner)

    def _tell_changes(self, owner: Plugin) -> None:
        """Put back what the request changed of the platform, and tell; its answer has gone out already."""
        try:
            with calling(owner, "endpoint"):
                check_invariants()
        except StartupError as error:
            self._state.metrics.count_plugin_error(owner.label)
            if (host := find_host()) is not None:
                host.note(owner, f"an endpoint changed what is decided, and it was put back: {error}")
            logging.getLogger(f"plugin.{owner.name}").error("endpoint_change_undone %s", error)

    def _owner(self, scope: Scope) -> Plugin | None:
        state = self._state
        if scope["type"] not in ("http", "websocket") or not (state.plugin_prefixes or state.overrides):
            return None
        path = get_route_path(scope)
        owner = state.plugin_prefixes.get(head_of(path))
        if owner is None and state.overrides:
            return next((o.plugin for o in state.overrides if o.answers(scope, path)), None)
        return owner


def _route_of(scope: Scope) -> str:
    """Name the whole route that a finished request took, as routers name its parts; "" where none did."""
    path = getattr(scope.get("route"), "path", "") if scope["type"] in ("http", "websocket") else ""
    head = head_of(get_route_path(scope)) if path and OWNER in scope else ""
    if head.startswith("/plugins/") and not path.startswith(head):
        path = head + path
    return f"{scope.get('method', 'WEBSOCKET')} {path}" if path else ""


def head_of(path: str) -> str:
    """Return the first two parts of a path: /plugins/<name> of what lies below it."""
    return "/".join(path.split("/", 3)[:3])


class _Watched:
    """A `send` that remembers whether an answer has begun, and whether it was closed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.closed = False

    async def send(self, message: Message) -> None:
        self.started = self.started or message["type"] in _STARTS
        self.closed = self.closed or message["type"] == "websocket.close"
        await self._send(message)


async def _end_websocket(
    failure: EndpointFailed, answer: _Watched, scope: Scope, receive: Receive, send: Send
) -> None:
    if answer.closed:
        return
    if answer.started:
        await send({"type": "websocket.close", "code": INTERNAL_ERROR, "reason": reason_of(str(failure))})
        return
    response = error_response(failure)
    await refuse(response, reason=str(failure), code=INTERNAL_ERROR, scope=scope, receive=receive, send=send)
