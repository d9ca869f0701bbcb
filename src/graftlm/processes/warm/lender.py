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
from collections.abc import Callable
from pathlib import Path

from graftlm.plugins.spelling import counted
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
    Question,
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
#: How often it looks whether it can still be found.
_LOOK_S = 10.0
_PAUSE_S = 0.1

#: A forked child's name and its descriptors, less the report.
Work = tuple[str, list[int]]


class Lender:
    """Answers until it is to end: told so, by a signal, or after `time_limit_s` in which nobody took a process.

    It also ends when `lost` says why nobody will find it any more: its memory would be held for nothing.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        circumstances: Circumstances,
        files: LoadedFiles,
        holds: str,
        time_limit_s: float,
        launcher: Channel | None,
        lost: Callable[[], str | None],
    ) -> None:
        self._listener = listener
        self._circumstances = circumstances
        self._files = files
        self._holds = holds
        self._time_limit_s = time_limit_s
        self._launcher = launcher
        self._lost = lost
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
                events = selector.select(min(_LOOK_S, max(0.0, self._deadline - time.monotonic())))
                if not events:
                    self._ending = self._unwanted()
                for key, _ in events:
                    if (work := key.data()) is not None:
                        return work  # type: ignore[no-any-return]
        logger.info(
            "warm parent ends reason=%r taken=%d running=%d", self._ending, self._taken, len(self._children)
        )
        return None

    def _unwanted(self) -> str:
        if time.monotonic() >= self._deadline:
            return f"nobody took a process for {self._time_limit_s:g} s"
        return self._lost() or ""

    def _launcher_gone(self) -> None:
        self._ending = "its launcher is gone"

    def _answer(self) -> Work | None:
        """Answer one client; in a forked child return what it is to serve."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            logger.warning("no client can be answered now: %s", error)
            time.sleep(_PAUSE_S)  # it waits on, and would be tried again at once
            return None
        with connection:
            connection.settimeout(_PATIENCE_S)
            try:
                check_peer(connection)
                asked = receive_question(connection)
                if asked is None:
                    return None
                return self._treat(connection, *asked)
            except ForeignUser as error:
                logger.warning("client refused: %s", error)
            except OSError as error:  # one that has gone, or that says nothing
                logger.info("client lost error=%r", error)
        return None

    def _treat(self, connection: socket.socket, question: Question, descriptors: list[int]) -> Work | None:
        try:
            if isinstance(question, Fork):
                return self._fork(connection, question, descriptors)
            answer = self._answer_to(question)
        except OSError as error:  # such as too many open files
            answer = Refused([f"it cannot look at itself: {error.strerror}"])
        send(connection, answer)
        return None

    def _answer_to(self, question: Check | GetStatus | Stop) -> Answer:
        match question:
            case Check(circumstances):
                reasons = self._differences(circumstances)
                return Refused(reasons) if reasons else Fits()
            case GetStatus():
                return Status(
                    holds=self._holds,
                    stale=shorten(self._changed_files()),
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
                *self._changed_files(),
                *self._files.found_elsewhere(map(os.fsdecode, now.search_path)),
            ]
        )

    def _changed_files(self) -> list[str]:
        return [*(f"{path} has changed" for path in self._files.changed()), *self._files.startup_changed()]

    def _fork(self, connection: socket.socket, question: Fork, descriptors: list[int]) -> Work | None:
        try:
            if reasons := self._reasons_against(question, descriptors):
                send(connection, Refused(reasons))
                return None
            report = socket.socket(fileno=descriptors.pop(FORK_DESCRIPTORS.index("report")))
            try:
                pid = self._children.fork(report)
            except OSError as error:
                report.close()
                send(connection, Refused([f"it cannot fork: {error.strerror}"]))
                return None
            if pid == 0:
                self._listener.close()
                if self._launcher is not None:
                    self._launcher.close()
                kept, descriptors = descriptors, []
                return question.name, kept
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._hand_over(connection, question.name, pid)
        return None

    def _reasons_against(self, question: Fork, descriptors: list[int]) -> list[str]:
        if (missing := len(FORK_DESCRIPTORS) - len(descriptors)) > 0:
            lost = counted(missing, "descriptor")
            return [f"{lost} did not arrive: it has as many files open as it may (`ulimit -n`)"]
        return self._differences(question.circumstances)

    def _hand_over(self, connection: socket.socket, name: str, pid: int) -> None:
        """Tell whoever asked; a child that nobody hears of ends by itself, its lifeline being closed."""
        try:
            handle = os.pidfd_open(pid)  # of this child and no other: nobody has reaped it yet
        except OSError as error:
            send(connection, Refused([f"it cannot hand a process over: {error.strerror}"]))
            return
        self._taken += 1
        self._deadline = time.monotonic() + self._time_limit_s
        logger.info("process taken name=%r pid=%d", name, pid)
        try:
            send(connection, Taken(pid), [handle])
        finally:
            os.close(handle)


def shorten(lines: list[str]) -> list[str]:
    """Keep the first of many lines, and count the others."""
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"{len(lines) - _SHOWN} more such differences"]


def own_memory() -> int:
    """Return the bytes of this process's memory, what it shares counted in parts (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
