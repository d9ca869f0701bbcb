"""The front end's end of the socket to the engine core, driven by the event loop without a thread of ours.

It does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq

from graftlm.engine.messages import ToFrontEnd, decode_to_front_end


class CoreSocket:
    """Binds at `address`; once attached to a loop, hands every message to `on_message`. Sending never blocks."""

    def __init__(self, address: str, *, on_message: Callable[[ToFrontEnd], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message = on_message
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._drain_is_due = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let `loop` take the messages, those that are there already first."""
        self._loop = loop
        loop.add_reader(self._descriptor, self._drain)
        loop.call_soon(self._drain)

    def send(self, data: bytes) -> None:
        """Send a message, once attached; one to a core that is gone is lost, its sentinel tells."""
        if self._descriptor < 0 or self._loop is None:
            return
        with contextlib.suppress(zmq.Again):
            self._socket.send(data, zmq.NOBLOCK)
        # The descriptor is edge-triggered, and sending may have taken the edge of a message that came in.
        if not self._drain_is_due:
            self._drain_is_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_is_due = False
        while self._descriptor >= 0:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(decode_to_front_end(data))

    def close(self) -> None:
        """Close the socket with what has not been sent; safe to call twice."""
        if self._descriptor >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._descriptor)
            self._descriptor = -1
            self._context.destroy(linger=0)
