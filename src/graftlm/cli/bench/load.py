"""Sends requests at a rate or with a concurrency, and collects what came of each; counts and judges nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def arrival_gaps(rate: float, *, burstiness: float, seed: int) -> Iterator[float]:
    """Yield the seconds between arrivals for ever: Poisson, or burstier (below 1) or more even (above 1)."""
    generator = random.Random(seed)
    while True:
        yield 0.0 if rate == float("inf") else generator.gammavariate(burstiness, 1 / (rate * burstiness))


async def run_load(
    calls: Sequence[Callable[[], Awaitable[T]]],
    *,
    gaps: Iterator[float],
    max_concurrency: int | None,
    on_done: Callable[[T], None],
) -> tuple[list[T], float]:
    """Start each call at its moment, or later when too many are under way; return results in order and the seconds.

    Moments are laid on one clock from the start, so that a late call does not put off those behind it.
    """
    gate = asyncio.Semaphore(max_concurrency or max(1, len(calls)))
    start = time.perf_counter()

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            result = await call()
        on_done(result)
        return result

    tasks = []
    try:
        due = start
        for call in calls:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(call)))
            due += next(gaps)
        results = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    return results, time.perf_counter() - start
