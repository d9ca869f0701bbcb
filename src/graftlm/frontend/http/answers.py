"""What a generating call has in common, whichever API it came through: its name, its usage, its way out.

It does not know the shapes of choices; `completions.py` and `chat.py` do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.choice_stream import TextUpdate
from graftlm.frontend.http.merging import merged
from graftlm.frontend.http.schemas.responses import PromptTokensDetails, Usage
from graftlm.frontend.http.sse import ChunkWriter, EventStream
from graftlm.frontend.http.state import ServerState


class Call:
    """The identity of one call: its id is the answer's and, with a number behind it, the engine requests'."""

    def __init__(self, prefix: str, *, model: str) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = model

    @property
    def headers(self) -> dict[str, str]:
        return {"x-request-id": self.id}

    def request_id(self, place: int) -> str:
        return f"{self.id}-{place}"

    def head(self, kind: str) -> dict[str, Any]:
        """Return what every chunk of a stream begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class UsageCounter:
    """Adds up the tokens of one call: each prompt once, all outputs."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens = 0

    def count(self, place: int, update: TextUpdate) -> None:
        """Take an update of the prompt at `place`; its first choice tells what was cached before the call."""
        self._completion_tokens += len(update.token_ids)
        if update.index == 0:
            self._prompt_tokens[place] = update.num_prompt_tokens
            self._cached_tokens[place] = update.num_cached_tokens

    def usage(self, *, count_outputs: bool = True) -> Usage:
        prompt_tokens = sum(self._prompt_tokens.values())
        completion_tokens = self._completion_tokens if count_outputs else 0
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached_tokens.values())),
        )


class Answer(Protocol):
    """One API's way to write what the engine brings."""

    call: Call

    def streams(self) -> Sequence[AsyncIterator[TextUpdate]]:
        """Start to generate: one stream for each prompt."""

    def chunks(self, place: int, update: TextUpdate) -> list[bytes]:
        """Write what an update of the prompt at `place` brings to a stream."""

    def last_chunk(self) -> bytes:
        """Write what comes after all choices, or nothing."""

    def keep(self, place: int, update: TextUpdate) -> None:
        """Remember an update for `whole`."""

    def whole(self) -> msgspec.Struct:
        """Return the whole answer."""


async def respond(answer: Answer, *, state: ServerState, request: Request, stream: bool) -> Response:
    """Generate and answer; errors before the first token keep their status, in a stream too."""
    headers = answer.call.headers
    if not stream:
        async with state.flights.track(request.receive), aclosing(merged(answer.streams())) as updates:
            async for place, update in updates:
                answer.keep(place, update)
        body = msgspec.json.encode(answer.whole())
        return Response(body, media_type="application/json", headers=headers)
    events = _events(answer)
    try:
        async with state.flights.track(request.receive):
            first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, flights=state.flights, headers=headers)


async def _events(answer: Answer) -> AsyncGenerator[bytes, None]:
    async with aclosing(merged(answer.streams())) as updates:
        async for place, update in updates:
            for chunk in answer.chunks(place, update):
                yield chunk
    if last := answer.last_chunk():
        yield last


def build_writer(call: Call, kind: str, *, include_usage: bool) -> ChunkWriter:
    """Build what encodes the chunks of `call`."""
    return ChunkWriter(head=call.head(kind), include_usage=include_usage)
