"""Starts child processes and watches them: a fresh interpreter each, or a fork of a warm one.

It does not know what a child is for: the parent names functions and passes bytes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from graftlm.processes import startup_trace
from graftlm.processes.channel import Channel, FrameKind
from graftlm.processes.child import Order, Setup, before_orphaned_end
from graftlm.processes.early import spawn, take_early
from graftlm.processes.failure import ChildFailed, Failure, describe_exit
from graftlm.processes.last_words import whose_code
from graftlm.processes.lifeline import Lifeline
from graftlm.processes.logs import current_log_settings

StartMethod = Literal["spawn", "forkserver"]

#: How long the exit code of a child whose channel has closed may take to arrive.
_EXIT_CODE_S = 5.0


_living: set[ChildProcess] = set()


def _kill_living() -> None:
    """End children that do not notice the end of this process: they are stopped, or hang and let no thread run."""
    for child in tuple(_living):
        child.kill()


before_orphaned_end(_kill_living)


class Handle(Protocol):
    """How a start method holds its child. `reason` is why the handle itself has ended it, if it did."""

    pid: int
    reason: str

    def wait(self) -> int | None:
        """Block until the child is gone; its exit code, negative for a signal, or None if nobody can tell it."""
        ...

    def kill(self) -> None: ...


class ChildProcess:
    """One child. `sentinel` becomes readable when it is gone; `channel` carries its messages."""

    def __init__(self, name: str, *, handle: Handle, channel: Channel, lifeline: Lifeline) -> None:
        self.name = name
        self.pid = handle.pid
        self.channel = channel
        self.shared_directory = ""
        self._handle = handle
        self._lifeline = lifeline
        self.sentinel, self._gone_writer = os.pipe()
        self._gone = threading.Event()
        self._exit_code: int | None = None
        self._last_words = ""
        self._exit_callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._closed = False
        _living.add(self)
        threading.Thread(target=self._wait, name=f"watch of {name}", daemon=True).start()

    def _wait(self) -> None:
        self._exit_code = self._handle.wait()
        _living.discard(self)
        self.channel.hang_up()
        self._last_words = self._lifeline.take_last_words()
        if self._last_words and sys.stderr is not None:
            print(f"{self.name}: {self._last_words}", file=sys.stderr, flush=True)
        with self._lock:
            self._gone.set()
            os.close(self._gone_writer)
            callbacks = tuple(self._exit_callbacks)
        for callback in callbacks:
            callback()

    def call(self, function: str, payload: bytes) -> None:
        """Run `function(payload)` in the child, after earlier orders; its failure shows in wait_ready."""
        self._order(FrameKind.CALL, function, payload)

    def run(self, function: str, payload: bytes) -> None:
        """Run `function(payload, channel)` as the child's last work; what it returns is the exit code."""
        self._order(FrameKind.RUN, function, payload)

    def _order(self, kind: FrameKind, function: str, payload: bytes) -> None:
        # A child that is gone has said why, or wait_ready will: it is not this call's to tell.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send_frame(kind, msgspec.msgpack.encode(Order(function=function, payload=payload)))

    def wait_ready(
        self, timeout_s: float | None = None, *, on_status: Callable[[str], None] | None = None
    ) -> bytes:
        """Wait until the child says READY, and return what it sent; raises ChildFailed."""
        return wait_all_ready([self], timeout_s=timeout_s, on_status=on_status)[0]

    def send(self, message: bytes) -> None:
        """Send a message; raises ChildFailed, with what the child had to say, when it is gone."""
        try:
            self.channel.send(message)
        except OSError:
            while True:  # what it said before is in the pipe, the last word is its failure
                self.receive()

    def receive(self) -> bytes:
        """Wait for the child's next message; raises ChildFailed when it reports a failure or dies."""
        frame = self.channel.recv_frame()
        match frame:
            case (FrameKind.DATA, data):
                return data
            case (FrameKind.FAILED, data):
                raise ChildFailed(self.name, Failure.from_bytes(data))
            case None:
                raise ChildFailed(self.name, Failure(cause=self.describe_death()))
            case (kind, _):
                raise ChildFailed(self.name, Failure(cause=f"sent {kind.name} after READY"))

    def exit_code(self, timeout_s: float = 0) -> int | None:
        """Return the exit code (negative for a signal); None while the child lives, or if nobody can tell it."""
        self._gone.wait(timeout_s)
        return self._exit_code

    def add_exit_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` from a thread when the child is gone, at once if it is."""
        with self._lock:
            if not self._gone.is_set():
                self._exit_callbacks.append(callback)
                return
        callback()

    def describe_death(self) -> str:
        """Say how the child ended; waits a moment for its exit code."""
        code = self.exit_code(_EXIT_CODE_S)
        if self._handle.reason:
            return f"process {self.pid} was ended: {self._handle.reason}"
        return f"process {self.pid} {describe_exit(code, whose=whose_code(self._last_words))}"

    def let_go(self) -> None:
        """Close the child's pipes without waiting: it ends by itself, within its grace."""
        if not self._closed:
            self._closed = True
            self.channel.close()
            self._lifeline.let_go()

    def stop(self, timeout_s: float = 2.0) -> int | None:
        """Let the child end, kill it when `timeout_s` is over, and return its exit code. Safe to call twice."""
        self.let_go()
        if not self._gone.wait(timeout_s):
            self._handle.kill()
            self._gone.wait(_EXIT_CODE_S)
        with self._lock:
            if self.sentinel >= 0 and self._gone.is_set():
                os.close(self.sentinel)
                self.sentinel = -1
        return self._exit_code

    def kill(self) -> None:
        """End the child at once."""
        self._handle.kill()


class _Spawned:
    reason = ""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self) -> int:
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()


def start_child(
    name: str,
    *,
    start_method: StartMethod = "spawn",
    env: Mapping[str, str] | None = None,
    make_directory: Callable[[], str] | None = None,
    fork: Callable[[int, int], Handle] | None = None,
    computes: bool = False,
) -> ChildProcess:
    """Start an empty child that waits for orders; `env` is laid over this process's environment.

    Never multiprocessing: its spawn runs the parent's `__main__` again in each child. The directory that
    `make_directory` makes is the child's `shared_directory`; the child removes it if this process dies without
    doing so, which is why it is made only when there is a child. `fork`, given a channel and a lifeline, takes the
    place of the start method. One that `computes` will import torch, and prepares for it at once; it may be the one
    that was started early.
    """
    environment = {**os.environ, **(env or {})}
    is_spawned = fork is None and start_method == "spawn"
    early = take_early() if is_spawned and computes else None
    if early is not None:
        handle: Handle = _Spawned(early.process)
        channel, lifeline = Channel(early.channel), Lifeline(early.lifeline)
    else:
        handle, channel, lifeline = _start(name, environment, start_method, fork, computes)
    child = ChildProcess(name, handle=handle, channel=channel, lifeline=lifeline)
    if make_directory is not None:
        try:
            child.shared_directory = make_directory()
        except BaseException:
            child.kill()
            child.stop(0)
            raise
    setup = Setup(
        name=name,
        sys_path=[os.fsencode(folder) for folder in sys.path],
        cwd=os.getcwdb(),  # noqa: PTH109 - bytes for the wire
        environment=None if is_spawned and early is None else _in_bytes(environment),
        log=current_log_settings(),
        trace_startup=startup_trace.recording(),
        shared_directory=child.shared_directory,
    )
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # wait_ready tells
        channel.send_frame(FrameKind.SETUP, msgspec.msgpack.encode(setup))
    return child


def _start(
    name: str,
    environment: Mapping[str, str],
    start_method: StartMethod,
    fork: Callable[[int, int], Handle] | None,
    computes: bool,
) -> tuple[Handle, Channel, Lifeline]:
    channel, theirs = Channel.pair()
    lifeline, lifeline_reader = Lifeline.pair()
    ends = theirs.fileno(), lifeline_reader.fileno()
    try:
        if fork is not None:
            handle = fork(*ends)
        elif start_method == "forkserver":
            from graftlm.processes.forking import fork_child

            handle = fork_child(*ends)
        else:
            handle = _Spawned(spawn(name, *ends, env=environment, computes=computes))
    except BaseException:
        channel.close()
        lifeline.close()
        raise
    finally:
        theirs.close()
        lifeline_reader.close()
    return handle, channel, lifeline


def _in_bytes(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def wait_all_ready(
    children: Sequence[ChildProcess],
    *,
    timeout_s: float | None = None,
    on_status: Callable[[str], None] | None = None,
) -> list[bytes]:
    """Wait until all children say READY; raises ChildFailed at the first that fails, dies or is late."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    answers: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.channel, selectors.EVENT_READ, child)
        while len(answers) < len(children):
            events = selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not events:
                late = next(child for child in children if child.pid not in answers)
                raise ChildFailed(late.name, Failure(cause=f"was not ready after {timeout_s} s"))
            for key, _ in events:
                child = key.data
                match child.channel.recv_frame():
                    case (FrameKind.STATUS, data):
                        if on_status is not None:
                            on_status(data.decode())
                    case (FrameKind.READY, data):
                        answers[child.pid] = data
                        selector.unregister(child.channel)
                    case (FrameKind.FAILED, data):
                        raise ChildFailed(child.name, Failure.from_bytes(data))
                    case None:
                        raise ChildFailed(child.name, Failure(cause=child.describe_death()))
                    case (kind, _):
                        raise ChildFailed(child.name, Failure(cause=f"sent {kind.name} before READY"))
    return [answers[child.pid] for child in children]
