"""Builds the HTTP application of one server: routes, guards, and the shape of errors.

It does not bind a port and does not start the engine; `server.py` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from graftlm.contracts.errors import EngineClosing, EngineDead, GraftlmError, RequestError
from graftlm.frontend.http.auth import ApiKeyGuard
from graftlm.frontend.http.body_limit import BodyLimit, BodyTooLarge
from graftlm.frontend.http.endpoint_blame import OWNER, EndpointBlame
from graftlm.frontend.http.errors import (
    ClientGone,
    MalformedBody,
    NotReady,
    OtherStatus,
    UnknownRoute,
    WrongMethod,
    error_response,
)
from graftlm.frontend.http.openapi import install_openapi
from graftlm.frontend.http.routes import chat, completions, health, metrics, models, plugins, tokenize
from graftlm.frontend.http.state import ServerState
from graftlm.frontend.http.validation import translate
from graftlm.frontend.http.websocket_ends import INTERNAL_ERROR, POLICY_VIOLATION, reason_of, refuse
from graftlm.version import __version__

ROUTERS = (
    models.router, completions.router, chat.router, tokenize.router,
    health.router, metrics.router, plugins.router,
)  # fmt: skip

Handler = Callable[[Request, Exception], Awaitable[Response]]

_CLIENT_CLOSED_REQUEST = 499


def build_app(state: ServerState) -> FastAPI:
    """Build the application over `state`; it answers at once, with 503 until the state is ready."""
    server_config = state.server_config
    app = FastAPI(
        title="graftlm",
        version=__version__,
        description="OpenAI's API over graftlm.",
        root_path=server_config.root_path,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.server = state
    for router in ROUTERS:
        app.include_router(router)
    open_paths = ["/health", "/metrics"] if server_config.metrics_no_auth else ["/health"]
    app.add_middleware(EndpointBlame, state=state)  # the last one added is the outermost
    app.add_middleware(BodyLimit, max_bytes=server_config.max_request_bytes)
    app.add_middleware(
        ApiKeyGuard, keys=server_config.api_key, open_paths=open_paths, open_prefixes=state.open_prefixes
    )
    app.add_exception_handler(GraftlmError, _in_websockets_too(_on_graftlm_error))
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _in_websockets_too(_on_http_exception))
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(Exception, _on_bug)
    install_openapi(app, has_keys=bool(server_config.api_key))
    return app


def _in_websockets_too(answer: Handler) -> Callable[..., Awaitable[Any]]:
    """Let a handler end WebSockets, too: by an answer before one is accepted, by a close with the reason after."""

    async def end(connection: HTTPConnection, error: Exception) -> Response | None:
        if not isinstance(connection, WebSocket):
            return await answer(cast(Request, connection), error)
        if connection.application_state == WebSocketState.CONNECTING:
            said = OtherStatus(error.status_code, str(error.detail)) if isinstance(error, HTTPException) else error
            await refuse(
                error_response(said), reason=str(said), code=POLICY_VIOLATION, scope=connection.scope,
                receive=connection.receive, send=connection.send,
            )  # fmt: skip
        elif connection.application_state == WebSocketState.CONNECTED:
            await connection.close(INTERNAL_ERROR, reason_of(str(error)))
        return None

    return end


async def _on_graftlm_error(request: Request, error: Exception) -> Response:
    if OWNER in request.scope and not isinstance(error, RequestError | NotReady | EngineClosing | EngineDead):
        raise error  # the plugin's own, like any other exception of its code
    return error_response(error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(translate(error.errors(), content_type=request.headers.get("content-type")))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = get_route_path(request.scope)
    if isinstance(error, BodyTooLarge):
        return error_response(error.error)
    if error.status_code == 404 and error.detail == "Not Found":
        return error_response(UnknownRoute(request.method, path), error.headers)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return error_response(WrongMethod(request.method, path, allowed), error.headers)
    if error.status_code == 400 and error.__cause__ is not None:
        return error_response(MalformedBody(f"the body cannot be read: {_reading_problem(error.__cause__)}"))
    return error_response(OtherStatus(error.status_code, str(error.detail)), error.headers)


def _reading_problem(cause: BaseException) -> str:
    match cause:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case RecursionError():
            return "it is nested too deep"
        case ValueError():
            return "it has a number of too many digits"
    return type(cause).__name__


async def _on_client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this; it is what the access log says."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Answer; the traceback is logged by the server, which gets the exception again."""
    return error_response(error)
