"""Asks for the API key on every route but /health; plain ASGI, so that streams pass through untouched.

It does not know what the routes do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from graftlm.frontend.http.errors import InvalidApiKey, error_response


class ApiKeyGuard:
    """Lets a request pass when it bears one of `keys`, or goes to one of `open_paths`; no keys, no guard."""

    def __init__(self, app: ASGIApp, *, keys: Iterable[str], open_paths: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not self._digests:
            await self._app(scope, receive, send)
            return
        given = _bearer(Headers(scope=scope).get("authorization", ""))
        if get_route_path(scope) in self._open_paths or self._is_known(given):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "an API key is needed"})
        else:
            await error_response(InvalidApiKey(given=bool(given)))(scope, receive, send)

    def _is_known(self, given: str) -> bool:
        """Compare with every key, in the same time whatever is given."""
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return bool(given) and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bearer(header: str) -> str:
    scheme, _, key = header.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
