"""Answers the questions of a warm parent's clients, and forks for those whose child would be as a fresh one.

It does not know what the process has prepared. What was forked lives on: a child belongs to whoever asked for it.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from pathlib import Path

from graftlm.processes.channel import Channel
from graftlm.processes.forked_children import ForkedChildren
from graftlm.processes.shutdown import SIGNALS
from graftlm.processes.warm.circumstances import Circumstances
from graftlm.processes.warm.loaded_files import LoadedFiles
from graftlm.processes.warm.messages import (
    FORK_DESCRIPTORS,
    Answer,
    Check,
    Fits,
    ForeignUser,
    Fork,
    GetStatus,
    Refused,
    Status,
    Stop,
    Stopping,
    Taken,
    check_peer,
    receive_question,
    send,
)

logger = logging.getLogger(__name__)

#: What a client that has connected may take to ask.
_PATIENCE_S = 1.0
#: How many of several reasons are told one by one.
_SHOWN = 3

#: A forked child's name and its descriptors, less the report.
Work = tuple[str, list[int]]


class Lender:
    """Answers until it is to end: told so, by a signal, or after `time_limit_s` in which nobody took a process."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        circumstances: Circumstances,
        files: LoadedFiles,
        holds: str,
        time_limit_s: float,
        launcher: Channel | None,
    ) -> None:
        self._listener = listener
        self._circumstances = circumstances
        self._files = files
        self._holds = holds
        self._time_limit_s = time_limit_s
        self._launcher = launcher
        self._children = ForkedChildren()
        self._taken = 0
        self._ending = ""
        self._deadline = time.monotonic() + time_limit_s
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._ending = signal.Signals(number).name

    def serve(self) -> Work | None:
        """Serve until the end. Returns None then, and in a forked child its name and descriptors."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, self._answer)
            selector.register(self._children.wake_reader, selectors.EVENT_READ, self._children.woken)
            if self._launcher is not None:
                selector.register(self._launcher, selectors.EVENT_READ, self._launcher_gone)
            while not self._ending:
                events = selector.select(max(0.0, self._deadline - time.monotonic()))
                if not events and time.monotonic() >= self._deadline:
                    self._ending = f"nobody took a process for {self._time_limit_s:.0f} s"
                for key, _ in events:
                    if (work := key.data()) is not None:
                        return work  # type: ignore[no-any-return]
        logger.info(
            "warm parent ends reason=%r taken=%d running=%d", self._ending, self._taken, len(self._children)
        )
        return None

    def _launcher_gone(self) -> None:
        self._ending = "its launcher is gone"

    def _answer(self) -> Work | None:
        """Answer one client; in a forked child return what it is to serve."""
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(_PATIENCE_S)
            try:
                check_peer(connection)
                asked = receive_question(connection)
                if asked is None:
                    return None
                question, descriptors = asked
                if isinstance(question, Fork):
                    return self._fork(connection, question, descriptors)
                send(connection, self._answer_to(question))
            except ForeignUser as error:
                logger.warning("client refused: %s", error)
            except OSError as error:  # one that has gone, or that says nothing
                logger.info("client lost error=%r", error)
        return None

    def _answer_to(self, question: Check | GetStatus | Stop) -> Answer:
        match question:
            case Check(circumstances):
                reasons = self._differences(circumstances)
                return Refused(reasons) if reasons else Fits()
            case GetStatus():
                return Status(
                    holds=self._holds,
                    stale=shorten([f"{path} has changed" for path in self._files.changed()]),
                    time_left_s=max(0.0, self._deadline - time.monotonic()),
                    memory_bytes=own_memory(),
                    taken=self._taken,
                    running=len(self._children),
                )
            case Stop():
                self._ending = "it was told to stop"
                return Stopping()

    def _differences(self, now: Circumstances) -> list[str]:
        """Say why a fork of this process would not be what a fresh child is."""
        return shorten(
            [
                *self._circumstances.differences(now),
                *(f"{path} has changed" for path in self._files.changed()),
                *self._files.found_elsewhere(now.search_path),
            ]
        )

    def _fork(self, connection: socket.socket, question: Fork, descriptors: list[int]) -> Work | None:
        reasons = self._differences(question.circumstances)
        if reasons or len(descriptors) != len(FORK_DESCRIPTORS):
            for descriptor in descriptors:
                os.close(descriptor)
            send(connection, Refused(reasons or [f"{len(descriptors)} descriptors came with the question"]))
            return None
        report = socket.socket(fileno=descriptors.pop(FORK_DESCRIPTORS.index("report")))
        pid = self._children.fork(report)
        if pid == 0:
            self._listener.close()
            if self._launcher is not None:
                self._launcher.close()
            return question.name, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        self._taken += 1
        self._deadline = time.monotonic() + self._time_limit_s
        logger.info("process taken name=%r pid=%d", question.name, pid)
        handle = os.pidfd_open(pid)  # of this child and no other: nobody has reaped it yet
        try:
            send(connection, Taken(pid), [handle])
        finally:
            os.close(handle)
        return None


def shorten(lines: list[str]) -> list[str]:
    """Keep the first of many lines, and count the others."""
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"{len(lines) - _SHOWN} more such differences"]


def own_memory() -> int:
    """Return the bytes of this process's memory, what it shares counted in parts (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
