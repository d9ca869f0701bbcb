"""Writes a stream of server-sent events: one JSON chunk each, `[DONE]` last.

What stays the same in all chunks of a stream is encoded once. It does not know what a chunk means.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from graftlm.contracts.errors import EngineDead, GraftlmError
from graftlm.frontend.http.errors import ClientGone, ErrorResponse, describe
from graftlm.frontend.http.flights import Flights
from graftlm.frontend.http.schemas.responses import Usage

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_encoder = msgspec.json.Encoder()


class ChunkWriter:
    """Encodes the chunks of one stream; `head` is what each of them begins with."""

    def __init__(self, *, head: Mapping[str, object], include_usage: bool) -> None:
        self._head = b"data: " + _encoder.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage

    def choice(self, choice: msgspec.Struct, **more: object) -> bytes:
        """Return the chunk of one choice; `more` are further fields of this chunk only."""
        if more:
            extra = b"]," + _encoder.encode(more)[1:-1] + self._tail[1:]
            return b"".join((self._head, _encoder.encode(choice), extra))
        return b"".join((self._head, _encoder.encode(choice), self._tail))

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, or nothing when it was not asked for."""
        if not self._include_usage:
            return b""
        return b"".join((self._head, b'],"usage":', _encoder.encode(usage), b"}\n\n"))


def error_chunk(error: BaseException) -> bytes:
    """Encode what a stream says when it cannot go on; its status is long sent."""
    return b"data: " + _encoder.encode(ErrorResponse(describe(error)[1])) + b"\n\n"


class EventStream(Response):
    """The answer that sends `first`, then what `events` yields, as server-sent events.

    One write for each event. Leaving early (the client goes away, the server stops) closes `events`, whose
    `finally` frees the engine's request. An error becomes the last chunk.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], *, flights: Flights, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = DONE
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with self._flights.track(receive):
                await send({"type": "http.response.body", "body": self._first, "more_body": True})
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except ClientGone:
            return
        except Exception as error:
            if not isinstance(error, GraftlmError):
                logger.exception("stream_failed")
            elif isinstance(error, EngineDead):
                logger.debug("stream_cut cause=%s", error)
            last = error_chunk(error) + DONE
        finally:
            await self._events.aclose()
        await send({"type": "http.response.body", "body": last, "more_body": False})
