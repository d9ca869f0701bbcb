"""The calls that are generating right now, and how one is cut short: by its client, or by the server.

It does not know what a call generates; the engine's request is freed because its iteration ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from graftlm.frontend.http.errors import ClientGone


class Flight:
    """One call in progress and, once it is cut, the reason."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self.cause: Exception | None = None

    def cut(self, cause: Exception) -> None:
        """End the call at its next await, as if `cause` were raised there."""
        if self.cause is None:
            self.cause = cause
            self._task.cancel()


class Flights:
    """All calls in progress of one server; used on its event loop only."""

    def __init__(self) -> None:
        self._flights: set[Flight] = set()
        self._cut: Exception | None = None

    def __len__(self) -> int:
        return len(self._flights)

    @contextlib.asynccontextmanager
    async def track(self, receive: Receive) -> AsyncIterator[Flight]:
        """Count the block as a call in progress; it ends with ClientGone when the client leaves.

        The request's body must have been read from `receive`.
        """
        if self._cut is not None:
            raise self._cut
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(task)
        watcher = asyncio.create_task(_watch(receive, flight))
        self._flights.add(flight)
        try:
            yield flight
        except asyncio.CancelledError:
            if flight.cause is None:
                raise
            task.uncancel()
            raise flight.cause from None
        finally:
            watcher.cancel()
            self._flights.discard(flight)

    def cut(self, cause: Exception) -> None:
        """Cut all calls, and every later one at its start."""
        self._cut = self._cut or cause
        for flight in tuple(self._flights):
            flight.cut(cause)

    async def wait_until_none(self, timeout_s: float) -> bool:
        """Wait until no call is in progress; tell whether that came true in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._flights:
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return False
            await asyncio.sleep(min(0.02, remaining))
        return True


async def _watch(receive: Receive, flight: Flight) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            flight.cut(ClientGone())
            return
