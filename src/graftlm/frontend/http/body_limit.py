"""Refuses request bodies above a size, before they fill the memory; plain ASGI.

It does not parse the body.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graftlm.frontend.http.errors import RequestTooLarge, error_response


class BodyLimit:
    """Answers 413 to a body of more than `max_bytes`, declared or not."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await error_response(RequestTooLarge(self._max_bytes))(scope, receive, send)
            return
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise BodyTooLarge(self._max_bytes)
            return message

        await self._app(scope, receive_within_limit, send)


class BodyTooLarge(HTTPException):
    """RequestTooLarge in the one class that FastAPI lets pass while it reads a body."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(status_code=413)
        self.error = RequestTooLarge(max_bytes)
