"""What ties a child to its parent: its closing tells the child to end, and over it come the last words of a crash.

It does not know who the child is, nor what its words mean.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import tempfile
import threading

_MOST_BYTES = 1 << 20

#: What a crash of this process writes its stack to, once `leave_last_words` was called.
_words = -1


class Lifeline:
    """The parent's end. Any thread may use it."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._lock = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Lifeline, socket.socket]:
        """Return the parent's end, and the socket that is to become the child's."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def let_go(self) -> None:
        """Tell the child that it is to end; its last words may still come. Safe to call twice."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go, and hear nothing more."""
        with self._lock:
            self._socket.close()

    def take_last_words(self) -> str:
        """Return the stack that a child which is gone left in a crash, or ""; closes this end."""
        with self._lock, self._socket:
            try:
                _, received, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_DONTWAIT)
            except OSError:  # it died before it could send anything, or this end was closed
                return ""
        words = ""
        for descriptor in received:
            words += os.pread(descriptor, _MOST_BYTES, 0).decode(errors="backslashreplace")
            os.close(descriptor)
        return words.strip()


def leave_last_words(lifeline: int) -> None:
    """From now on a crash of this child writes its stack where the parent finds it, whoever ends it.

    A process that plugin code forks from it has a standard error of its own to write to.
    """
    global _words
    _words = os.memfd_create("last words") if hasattr(os, "memfd_create") else _nameless_file()
    with socket.socket(fileno=os.dup(lifeline)) as connection, contextlib.suppress(OSError):
        socket.send_fds(connection, [b"w"], [_words])
    faulthandler.enable(_words)
    os.register_at_fork(after_in_child=_speak_for_itself)


def last_words() -> int:
    """Return the descriptor of this child's last words; -1 in a process that has no parent of ours."""
    return _words


def _nameless_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _speak_for_itself() -> None:
    global _words
    _words = -1
    faulthandler.disable()
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
