"""Starts a warm parent and waits until it is ready; it does not know what the parent is to hold."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from graftlm.processes.channel import Channel, FrameKind
from graftlm.processes.failure import ChildFailed, Failure, describe_exit
from graftlm.processes.interpreter import start_interpreter
from graftlm.processes.warm.parent import WarmOrder
from graftlm.processes.warm.place import log_path


class Launched:
    """A warm parent as its launcher holds it; one in the foreground ends with this object."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, *, log: Path | None = None) -> None:
        self.process = process
        self._channel = channel
        self._log = log

    def wait_ready(self, on_status: Callable[[str], None]) -> str:
        """Return what it holds; raises ChildFailed with the cause when it gave up."""
        name = "warm parent"
        while True:
            match self._channel.recv_frame():
                case (FrameKind.STATUS, text):
                    on_status(text.decode())
                case (FrameKind.READY, holds):
                    return holds.decode()
                case (FrameKind.FAILED, data):
                    raise ChildFailed(name, Failure.from_bytes(data))
                case None:
                    code = self.process.wait()
                    cause = f"{name}: process {self.process.pid} {describe_exit(code)}{self._last_line()}"
                    raise ChildFailed(name, Failure(cause=cause, expected=True))  # no traceback of ours tells more
                case (kind, _):
                    raise ChildFailed(name, Failure(cause=f"sent {kind.name} before READY"))

    def _last_line(self) -> str:
        """Return the end of what a process that could not say why it ended wrote into its log."""
        lines = self._log.read_text(errors="replace").split("\n") if self._log and self._log.is_file() else []
        return next((f"; the last line of {self._log}: {line.strip()}" for line in lines[::-1] if line.strip()), "")

    def let_go(self) -> None:
        """Close the pipe: a parent that is still preparing, or in the foreground, ends."""
        self._channel.close()


def start_warm_parent(order: WarmOrder, *, environment: Mapping[str, str]) -> Launched:
    """Start the process in a session of its own, writing to its log; in the foreground, as part of this one."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as stack:
        log = place = None
        if not order.foreground:
            place = log_path(Path(order.folder), order.key)
            log = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            stack.callback(os.close, log)
        process = start_interpreter(
            "graftlm.processes.warm.parent", ("--launcher", str(theirs.fileno())), env=environment,
            descriptors=(theirs.fileno(),), log=log,
        )  # fmt: skip
    channel = Channel(ours)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # wait_ready tells
        channel.send(msgspec.msgpack.encode(order))
    return Launched(process, channel, log=place)
