"""How a WebSocket ends that goes wrong: an answer before it is accepted, a close with the reason after.

It does not know what went wrong.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: RFC 6455: what a server could not foresee, and the most bytes that a close may say.
INTERNAL_ERROR = 1011
POLICY_VIOLATION = 1008
_MOST_REASON_BYTES = 123


def reason_of(text: str) -> str:
    """Shorten a sentence to what a close frame can hold."""
    return text.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")


async def refuse(response: Response, *, reason: str, code: int, scope: Scope, receive: Receive, send: Send) -> None:
    """End a WebSocket that was not accepted: with `response` where the server can send one, else closed."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": code, "reason": reason_of(reason)})
