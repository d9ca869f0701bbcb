"""The bytes of one connection: what is no HTTP gets an OpenAI-shaped error, and a caller that stalls is dropped.

It does not know routes; uvicorn parses, and calls the application.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from graftlm.contracts.errors import RequestError
from graftlm.frontend.http.errors import HeadTooLarge, NoHTTP, error_response

MAX_HEAD_BYTES = 64 * 1024
#: How long a request may pause while it is being sent; a person's slow line never pauses that long.
STALL_S = 60.0


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 by httptools, with bounds on what a caller may leave unfinished."""

    stall_s = STALL_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._receiving = True  # a new connection owes a request
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unwatch()
        self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(MAX_HEAD_BYTES))
        elif self._receiving:
            self._watch()

    def on_message_begin(self) -> None:
        self._receiving = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -(2**62)  # what follows is body, whose size others judge
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._receiving = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(NoHTTP())

    def _refuse(self, error: RequestError) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (cycle.response_started or self.pipeline):
            self.transport.close()  # an answer is under way: nothing can be put into it
            return
        response = error_response(error)
        head = (
            f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(response.body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + response.body)
        self.transport.close()

    def _watch(self) -> None:
        self._stall = self.loop.call_later(self.stall_s, self._drop)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _drop(self) -> None:
        if self.flow.read_paused:  # it is the application that does not read
            self._watch()
        elif not self.transport.is_closing():
            self.transport.close()
