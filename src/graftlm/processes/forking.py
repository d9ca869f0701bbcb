"""The parent's side of the fork server: starts it once in a family of processes, and asks it for children.

It does not know what the children are for; `fork_server.py` is the other side.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys
import threading

from graftlm.processes.exit_functions import at_exit
from graftlm.processes.fork_server import PID
from graftlm.processes.forked_children import CODE
from graftlm.processes.interpreter import start_interpreter
from graftlm.processes.threads import thread_environment

_lock = threading.Lock()
_requests: socket.socket | None = None


class ForkServerGone(RuntimeError):
    def __init__(self) -> None:
        super().__init__(
            "the fork server has ended, so no child can be forked; see its last words above, or use "
            "--start-method spawn"
        )


class Forked:
    """A child of the fork server, which reports its pid and its exit code on a socket of its own."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        pid = report.recv(PID.size, socket.MSG_WAITALL)
        if len(pid) < PID.size:
            raise ForkServerGone
        (self.pid,) = PID.unpack(pid)
        self.reason = ""
        self._lock = threading.Lock()
        self._gone = False

    def wait(self) -> int:
        data = self._report.recv(CODE.size, socket.MSG_WAITALL)
        with self._lock:
            self._gone = True
            if len(data) < CODE.size:  # the server died: its child may live, and nobody can watch it any more
                self.reason = "the fork server, which watched it, is gone"
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                return -signal.SIGKILL
        self._report.close()
        return int(CODE.unpack(data)[0])

    def kill(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._gone:
                os.kill(self.pid, signal.SIGKILL)


def fork_child(channel: int, lifeline: int) -> Forked:
    """Ask the fork server, started at the first call, for a child that holds these descriptors."""
    with _lock:
        server = _requests or _start_server()
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [channel, lifeline, theirs.fileno(), server.fileno(), 1, 2]
            rights = array.array("i", descriptors).tobytes()
            try:
                server.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except OSError as error:
                raise ForkServerGone from error
    return Forked(ours)


def start_fork_server() -> None:
    """Start the fork server, unless there is one, without waiting until it has its imports behind it."""
    with _lock:
        if _requests is None:
            _start_server()


def adopt_server(requests: socket.socket) -> None:
    """Use the fork server that made this process; called in a forked child."""
    global _requests
    _requests = requests


def _start_server() -> socket.socket:
    global _requests
    if not hasattr(socket, "SOCK_SEQPACKET") or not sys.platform.startswith("linux"):
        raise RuntimeError("--start-method forkserver needs Linux; use --start-method spawn")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = start_interpreter(
            "graftlm.processes.fork_server",
            ("--requests", str(theirs.fileno())),
            env={**os.environ, **thread_environment()},
            descriptors=(theirs.fileno(),),
        )
    at_exit(server.kill)  # while it imports it does not notice that nobody is left to ask it
    _requests = ours
    return ours
