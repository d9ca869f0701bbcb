"""Reads several streams as one; it does not know what flows in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

T = TypeVar("T")


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield (place of the stream, item) as items come. The first error ends all; leaving early closes all."""
    if len(streams) == 1:
        async with aclosing(cast("AsyncGenerator[T, None]", streams[0])) as stream:
            async for item in stream:
                yield 0, item
        return
    arrived: asyncio.Queue[tuple[int, T | None, Exception | None]] = asyncio.Queue()

    async def pump(place: int, stream: AsyncIterator[T]) -> None:
        error: Exception | None = None
        try:
            async with aclosing(cast("AsyncGenerator[T, None]", stream)) as items:
                async for item in items:
                    arrived.put_nowait((place, item, None))
        except Exception as caught:  # carried to the reader, who raises it
            error = caught
        arrived.put_nowait((place, None, error))

    tasks = [asyncio.create_task(pump(place, stream)) for place, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            origin, arrival, failure = await arrived.get()
            if failure is not None:
                raise failure
            if arrival is None:
                running -= 1
            else:
                yield origin, arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
