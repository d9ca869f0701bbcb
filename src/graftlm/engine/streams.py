"""Who waits for what from the engine core: streams of updates by request, answers by call.

It does not know how either gets here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from graftlm.contracts.errors import GraftlmError, InvalidParameter
from graftlm.contracts.request import RequestUpdate

Stream = asyncio.Queue["RequestUpdate | GraftlmError"]


class Streams:
    """One queue for each request in progress; what comes for anybody else is dropped."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}

    def check_free(self, request_id: str) -> None:
        if request_id in self._streams:
            raise InvalidParameter("request_id", request_id, cure="a request with this id is in progress")

    def open(self, request_id: str) -> Stream:
        stream = self._streams[request_id] = asyncio.Queue()
        return stream

    def close(self, request_id: str) -> None:
        del self._streams[request_id]

    def deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            stream = self._streams.get(update.request_id)
            if stream is not None:
                stream.put_nowait(update)

    def end_all(self, error: GraftlmError) -> None:
        """Raise `error` in everybody who waits."""
        for stream in self._streams.values():
            stream.put_nowait(error)


class Answers:
    """One future for each call in progress."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._next_call_id = 0

    def open(self) -> tuple[int, asyncio.Future[Any]]:
        self._next_call_id += 1
        future = self._futures[self._next_call_id] = asyncio.get_running_loop().create_future()
        return self._next_call_id, future

    def close(self, call_id: int) -> None:
        del self._futures[call_id]

    def deliver(self, call_id: int, value: Any, error: str | None) -> None:
        future = self._futures.get(call_id)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(GraftlmError(error))

    def end_all(self, error: GraftlmError) -> None:
        """Raise `error` in everybody who waits."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
