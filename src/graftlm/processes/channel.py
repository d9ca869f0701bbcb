"""The two-way pipe between a parent and one child: frames of bytes with a kind and a length.

It does not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import threading
from enum import IntEnum

from graftlm.processes.failure import Failure

_HEADER = struct.Struct("!BI")
_MAX_FRAME_BYTES = 2**32 - 1


class FrameKind(IntEnum):
    """What a frame is for; DATA is the business of whoever holds both ends."""

    DATA = 0
    SETUP = 1
    CALL = 2
    RUN = 3
    READY = 4
    STATUS = 5
    FAILED = 6


class Channel:
    """One end of the pipe. Any thread may send; one thread at a time may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._send_lock = threading.Lock()
        self._close_lock = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the parent's end and the socket that is to become the child's."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        """The descriptor to select on; -1 once closed."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Send one message; blocks while the other end does not read. Raises OSError when it is gone."""
        self.send_frame(FrameKind.DATA, data)

    def recv(self) -> bytes | None:
        """Wait for the next message; None when the other end is closed."""
        frame = self.recv_frame()
        if frame is None:
            return None
        kind, data = frame
        if kind != FrameKind.DATA:
            raise ValueError(f"expected a message, got a {kind.name} frame of {len(data)} bytes")
        return data

    def ready(self, data: bytes = b"") -> None:
        """Tell the parent that start-up is over, and what came out of it."""
        self.send_frame(FrameKind.READY, data)

    def status(self, text: str) -> None:
        """Tell the parent what start-up is doing."""
        self.send_frame(FrameKind.STATUS, text.encode())

    def failed(self, failure: Failure | str) -> None:
        """Tell the parent why this process gives up; a parent that is gone need not know."""
        if isinstance(failure, str):
            failure = Failure(cause=failure)
        with contextlib.suppress(OSError):
            self.send_frame(FrameKind.FAILED, failure.to_bytes())

    def send_frame(self, kind: FrameKind, data: bytes) -> None:
        if len(data) > _MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(data)} bytes is above the limit of {_MAX_FRAME_BYTES}")
        with self._send_lock:
            self._socket.sendall(_HEADER.pack(kind, len(data)) + data)

    def recv_frame(self) -> tuple[FrameKind, bytes] | None:
        header = self._recv_exactly(_HEADER.size)
        if header is None:
            return None
        kind, length = _HEADER.unpack(header)
        data = self._recv_exactly(length)
        return None if data is None else (FrameKind(kind), bytes(data))

    def _recv_exactly(self, length: int) -> bytearray | None:
        data = bytearray(length)
        view = memoryview(data)
        filled = 0
        while filled < length:
            try:
                count = self._socket.recv_into(view[filled:])
            except ConnectionError:  # the other end died with bytes of ours unread
                return None
            if count == 0:
                return None
            filled += count
        return data

    def has_message(self) -> bool:
        """Tell whether `recv` would return at once, with a message or with the end."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def hang_up(self) -> None:
        """Make an end after what has come, whoever else holds the other end; its process is gone.

        What plugin code has forked from it may: nobody would hear of the death, nor be woken by it. Only on Linux,
        which keeps what has come; others would drop a failure that was told and not yet read.
        """
        if sys.platform == "linux":
            with self._close_lock, contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; the other end sees it at once."""
        with self._close_lock:
            self._socket.close()
