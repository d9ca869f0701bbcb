"""Starts an interpreter before it is known what for: its start is over when a child that computes is wanted.

It imports little, being the first thing that a command does, and does not know what the child will be told.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping

from graftlm.processes.interpreter import start_interpreter
from graftlm.processes.shutdown import SIGNALS
from graftlm.processes.threads import thread_environment


class EarlyChild:
    """A child without orders: its process, and our ends of its channel and its lifeline.

    Of its environment only what libraries read when they are loaded matters; its first order replaces all.
    """

    def __init__(self, name: str) -> None:
        self.channel, channel = socket.socketpair()
        self.lifeline, lifeline = socket.socketpair()
        with channel, lifeline:
            self.process = spawn(
                name, channel.fileno(), lifeline.fileno(), env={**os.environ, **thread_environment()}, computes=True
            )

    def end(self) -> None:
        """End it at once: nobody has told it anything."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
        self.lifeline.close()


def spawn(
    name: str, channel: int, lifeline: int, *, env: Mapping[str, str], computes: bool
) -> subprocess.Popen[bytes]:
    """Start the interpreter of a child; `name` is shown by ps, and nothing else reads it."""
    return start_interpreter(
        f"graftlm.processes.{'computing_child' if computes else 'child'}",
        ("--name", name, "--channel", str(channel), "--lifeline", str(lifeline)),
        env=env,
        descriptors=(channel, lifeline),
    )


_early: EarlyChild | None = None
_started: EarlyChild | None = None


def start_early(name: str) -> None:
    """Start the child that `take_early` will give; one in a process."""
    global _early, _started
    # Whoever is interrupted finds a child that it can end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        if _started is None:
            _early = _started = EarlyChild(name)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_early() -> EarlyChild | None:
    """Give the child away, or None if there is none or it has died meanwhile."""
    global _early
    early, _early = _early, None
    if early is not None and early.process.poll() is not None:
        early.end()
        return None
    return early


def end_early() -> None:
    """End the child if nobody has taken it."""
    if (early := take_early()) is not None:
        early.end()


def leave_none_behind() -> None:
    """End the child, taken or not: an interrupt may have come just when nobody had it in hand."""
    if _started is not None and _started.process.poll() is None:
        _started.process.kill()
        _started.process.wait()
