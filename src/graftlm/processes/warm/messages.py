"""What is said over a warm parent's socket: one question with descriptors, one answer, each in one packet.

Both ends check that the other belongs to the same user. It does not know what is done with an answer.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from graftlm.processes.warm.circumstances import Circumstances

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8
_CREDENTIALS = struct.Struct("3i")

#: The descriptors that come with `Fork`, in this order.
FORK_DESCRIPTORS = ("channel", "lifeline", "report", "stdout", "stderr")


class Check(msgspec.Struct, tag=True):
    """Would a fork be what a fresh child is? Answered by Fits or Refused."""

    circumstances: Circumstances


class Fork(msgspec.Struct, tag=True):
    """Fork a child that serves the channel; answered by Taken, with the child's pidfd, or Refused."""

    circumstances: Circumstances
    name: str


class GetStatus(msgspec.Struct, tag=True):
    """Answered by Status."""


class Stop(msgspec.Struct, tag=True):
    """Answered by Stopping, then the parent ends."""


class Fits(msgspec.Struct, tag=True):
    pass


class Refused(msgspec.Struct, tag=True):
    """`reasons` say what is not as it was."""

    reasons: list[str]


class Taken(msgspec.Struct, tag=True):
    pid: int


class Stopping(msgspec.Struct, tag=True):
    pass


class Status(msgspec.Struct, tag=True, kw_only=True):
    """A parent as it sees itself; times in seconds, memory as the share that is its own (PSS)."""

    holds: str
    stale: list[str]
    time_left_s: float
    memory_bytes: int
    taken: int
    running: int


Question = Check | Fork | GetStatus | Stop
Answer = Fits | Refused | Taken | Status | Stopping


class ForeignUser(ConnectionError):
    def __init__(self, user: int) -> None:
        super().__init__(f"the other end belongs to user {user}, not to {os.geteuid()}")


def ask(
    place: Path, question: Question, *, descriptors: Sequence[int] = (), timeout_s: float
) -> tuple[Answer, list[int]]:
    """Ask the parent at `place`; raises OSError when it is gone, foreign, silent, or of another version."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout_s)
        _connect(connection, place, deadline=time.monotonic() + timeout_s)
        check_peer(connection)
        send(connection, question, descriptors)
        data, received = _receive(connection)
    try:
        if not data:
            raise ConnectionResetError("it closed the connection without an answer")
        return msgspec.msgpack.decode(data, type=Answer), received
    except msgspec.DecodeError as error:
        raise ConnectionError(f"its answer cannot be read: {error}") from error


def _connect(connection: socket.socket, place: Path, *, deadline: float) -> None:
    """Connect; while as many wait as the parent lets wait, the kernel says no at once, and it is tried again."""
    while True:
        try:
            return connection.connect(str(place))
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.01)


def receive_question(connection: socket.socket) -> tuple[Question, list[int]] | None:
    """Return what was asked; None when the other end has gone or says what this version does not know."""
    data, descriptors = _receive(connection)
    try:
        return msgspec.msgpack.decode(data, type=Question), descriptors
    except msgspec.DecodeError:
        for descriptor in descriptors:
            os.close(descriptor)
        return None


def send(connection: socket.socket, message: Question | Answer, descriptors: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    connection.sendmsg([msgspec.msgpack.encode(message)], rights if descriptors else [])


def check_peer(connection: socket.socket) -> None:
    """Raise ForeignUser unless the process at the other end is this user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.geteuid():
        raise ForeignUser(user)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(_MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for _, _, rights in ancillary:
        descriptors.frombytes(rights)
    return data, list(descriptors)
