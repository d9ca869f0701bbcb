"""A single-threaded process that has the slow imports behind it and forks children on request.

It preloads torch without computing anything: `import torch` starts no thread (OpenBLAS is held to one), while the
first matmul would start an OpenMP pool that a forked child cannot use. Children share its pages, so one that needs
no torch pays nothing for it. Environment, working directory and sys.path come to each child in its first frame;
only what libraries read while they are imported is frozen here. It ends when nobody is left to ask it.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from graftlm.processes.channel import Channel
from graftlm.processes.child import EXIT_ORPHANED, run_child, without_collections
from graftlm.processes.forked_children import ForkedChildren, send_report
from graftlm.processes.shutdown import leave_signals_to_parent

PID = struct.Struct("!q")

PRELOAD = ("msgspec", "numpy", "torch")

_NUM_DESCRIPTORS = 6
_LOOK_S = 0.1


class ForkServer:
    """Forks, reaps and reports."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children = ForkedChildren()

    def serve(self) -> list[int] | None:
        """Serve until nobody holds the other end. Returns None then, and in a forked child its descriptors."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._children.wake_reader, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._children.wake_reader:
                        self._children.woken()
                        continue
                    descriptors = self._take_request()
                    if descriptors is None:
                        return None
                    if self._fork(descriptors):
                        self._requests.close()
                        return descriptors

    def _take_request(self) -> list[int] | None:
        room = socket.CMSG_SPACE(_NUM_DESCRIPTORS * array.array("i").itemsize)
        message, ancillary, _, _ = self._requests.recvmsg(16, room, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return None
        descriptors = array.array("i")
        for _, _, rights in ancillary:
            descriptors.frombytes(rights)
        return list(descriptors)

    def _fork(self, descriptors: list[int]) -> bool:
        """Return True in the child, whose report is closed."""
        report = socket.socket(fileno=descriptors.pop(2))
        pid = self._children.fork(report)
        if pid == 0:
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        send_report(report, PID.pack(pid))
        return False


@contextlib.contextmanager
def ending_when_unwanted(requests: socket.socket, *, on_end: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Look, while the block takes its seconds, whether anybody is left to ask; a timer, since no thread may be.

    When nobody is, the process ends, after a call of `on_end`.
    """

    def look(number: int, frame: FrameType | None) -> None:
        try:
            if not requests.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                on_end()
                os._exit(EXIT_ORPHANED)
        except BlockingIOError:
            return

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _become_child(descriptors: list[int]) -> int:
    from graftlm.processes.forking import adopt_server

    channel, lifeline, requests, stdout, stderr = descriptors
    for descriptor, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    adopt_server(socket.socket(fileno=requests))
    return run_child(Channel(socket.socket(fileno=channel)), lifeline)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m graftlm.processes.fork_server")
    parser.add_argument("--requests", type=int, required=True)
    options = parser.parse_args(arguments)
    leave_signals_to_parent()
    os.set_inheritable(options.requests, False)
    requests = socket.socket(fileno=options.requests)
    with ending_when_unwanted(requests), without_collections():
        for name in PRELOAD:
            importlib.import_module(name)
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise RuntimeError(f"importing {', '.join(PRELOAD)} left {threads} threads, which no fork survives")
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every shared page
    descriptors = ForkServer(requests).serve()
    return 0 if descriptors is None else _become_child(descriptors)


if __name__ == "__main__":
    from graftlm.processes.fork_server import main as main_

    sys.exit(main_())
