"""Turns what went wrong into an HTTP status and OpenAI's error shape.

It does not know which route failed.

GraftlmError (contracts)
├── NotReady            the engine is still starting
├── EndpointFailed      the code of an endpoint plugin raised
└── RequestError (contracts)
    ├── InvalidApiKey
    ├── UnknownRoute, WrongMethod, WrongContentType, RequestTooLarge
    ├── NoHTTP, HeadTooLarge   before there is a request at all
    ├── MalformedBody, InvalidField, UnknownField
    └── OtherStatus     what a plugin's HTTPException says
ClientGone              nobody is left to answer
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from graftlm.contracts.errors import EngineClosing, EngineDead, GraftlmError, RequestError
from graftlm.plugins.spelling import error_text

MAX_MESSAGE_CHARS = 2000
RETRY_AFTER_S = 2


class ErrorBody(msgspec.Struct):
    """OpenAI's description of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """The body of every answer that is not 2xx (but /health's)."""

    error: ErrorBody


class NotReady(GraftlmError):
    def __init__(self, status: str) -> None:
        super().__init__(f"the server is not ready yet: {status}; ask /health until it answers 200")


class EndpointFailed(GraftlmError):
    def __init__(self, plugin: str, error: BaseException) -> None:
        super().__init__(f"plugin {plugin} failed: {error_text(error)}")


class MalformedBody(RequestError):
    code = "malformed_body"


class InvalidField(RequestError):
    code = "invalid_value"


class UnknownField(RequestError):
    code = "unknown_field"


class UnknownRoute(RequestError):
    status = 404
    code = "unknown_route"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"there is no route {method} {path}; /openapi.json lists all routes")


class WrongMethod(RequestError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible on {path}; use {allowed}")


class WrongContentType(RequestError):
    status = 415
    code = "unsupported_content_type"

    def __init__(self, content_type: str | None) -> None:
        super().__init__(
            f"the body's Content-Type is {content_type!r}; send JSON with 'Content-Type: application/json'"
        )


class RequestTooLarge(RequestError):
    status = 413
    code = "request_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the request body is larger than {limit} bytes; send less in one call, "
            "or start the server with a larger --max-request-bytes"
        )


class NoHTTP(RequestError):
    code = "malformed_request"

    def __init__(self) -> None:
        super().__init__("what came is no HTTP/1.1 request; this server speaks plain HTTP, without TLS")


class HeadTooLarge(RequestError):
    status = 431
    code = "headers_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request's path and headers are larger than {limit} bytes; send less of them")


class InvalidApiKey(RequestError):
    status = 401
    code = "invalid_api_key"

    def __init__(self, *, given: bool) -> None:
        problem = "the API key is not one of this server's" if given else "an API key is needed"
        super().__init__(f"{problem}; send 'Authorization: Bearer KEY'")


class OtherStatus(RequestError):
    code = "http_error"

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


def describe(error: BaseException) -> tuple[int, ErrorBody]:
    """Return the HTTP status and the body for `error`."""
    message = printable(str(error))
    match error:
        case InvalidApiKey():
            return error.status, ErrorBody(message, "authentication_error", error.param, error.code)
        case OtherStatus() if error.status >= 500:
            return error.status, ErrorBody(message, "server_error", None, error.code)
        case RequestError():
            return error.status, ErrorBody(message, "invalid_request_error", error.param, error.code)
        case NotReady():
            return 503, ErrorBody(message, "server_error", None, "not_ready")
        case EngineClosing():
            return 503, ErrorBody(message, "server_error", None, "shutting_down")
        case EngineDead():
            return 500, ErrorBody(message, "server_error", None, "engine_dead")
        case EndpointFailed():
            return 500, ErrorBody(message, "server_error", None, "plugin_failed")
        case GraftlmError():
            return 500, ErrorBody(message, "server_error", None, "generation_failed")
    kind = type(error).__name__
    return 500, ErrorBody(f"internal error {kind}; the server's log has it", "server_error", None, "internal_error")


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    """Build the whole answer for `error`."""
    status, body = describe(error)
    extra: dict[str, str] = {}
    if status == 503:
        extra["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(ErrorResponse(body)),
        status_code=status,
        media_type="application/json",
        headers={**(headers or {}), **extra},
    )


def printable(text: str) -> str:
    """Return `text` so that it can be sent as UTF-8, and not longer than an error should be."""
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[:MAX_MESSAGE_CHARS] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
