"""Asks for the API key on every route but /health; plain ASGI, so that streams pass through untouched.

It does not know what the routes do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from graftlm.frontend.http.endpoint_blame import head_of
from graftlm.frontend.http.errors import InvalidApiKey, error_response
from graftlm.frontend.http.websocket_ends import POLICY_VIOLATION, refuse


class ApiKeyGuard:
    """Lets a request pass when it bears one of `keys`, or goes to one of `open_paths`; no keys, no guard.

    `open_prefixes` are the /plugins/<name> below which all is open; it may grow while plugins are attached.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Iterable[str], open_paths: Iterable[str], open_prefixes: Collection[str] = ()
    ) -> None:
        self._app = app
        self._open_prefixes = open_prefixes
        self._digests = [_digest(key) for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not self._digests:
            await self._app(scope, receive, send)
            return
        given = _bearer(Headers(scope=scope).get("authorization", ""))
        if self._is_open(get_route_path(scope)) or self._is_known(given):
            await self._app(scope, receive, send)
            return
        error = InvalidApiKey(given=bool(given))
        if scope["type"] == "websocket":
            await refuse(
                error_response(error), reason=str(error), code=POLICY_VIOLATION, scope=scope, receive=receive,
                send=send,
            )  # fmt: skip
        else:
            await error_response(error)(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or head_of(path) in self._open_prefixes

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
