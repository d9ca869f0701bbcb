"""How a command finds its user's warm parents, and takes processes from them. It never needs one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from graftlm.processes.forked_children import CODE
from graftlm.processes.liveness import is_running
from graftlm.processes.warm.circumstances import Circumstances
from graftlm.processes.warm.messages import (
    Answer,
    Check,
    Fits,
    Fork,
    GetStatus,
    Refused,
    Status,
    Stop,
    Taken,
    ask,
)
from graftlm.processes.warm.place import (
    Record,
    end_by_signal,
    not_private,
    read_records,
    remove_record,
    socket_path,
    warm_folder,
)

#: What an answer may take; on a machine so busy that it takes longer, a fresh child costs more.
_ANSWER_S = 5.0
_END_S = 2.0
#: What the exit code of a child that is gone may take to arrive.
_CODE_S = 0.5

AnswerT = TypeVar("AnswerT", bound=Answer)


class NotTaken(Exception):
    """A parent gave no process; `reasons` say why, the text is all of them."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class TakenChild:
    """The handle of a process that a warm parent forked. It outlives the parent, which only tells its exit code."""

    reason = ""

    def __init__(self, pid: int, *, process: int, report: socket.socket) -> None:
        self.pid = pid
        self._process = process
        self._report = report
        self._lock = threading.Lock()

    def wait(self) -> int | None:
        """Block until the child is gone; its exit code, or None when nobody is left who knows it."""
        gone, told = select.poll(), select.poll()
        gone.register(self._process, select.POLLIN)
        told.register(self._report, select.POLLIN)
        gone.poll()
        # A parent that is stopped, or swamped, is not waited for: the child has ended all the same.
        data = self._report.recv(CODE.size) if told.poll(_CODE_S * 1000) else b""
        self._report.close()
        code = int(CODE.unpack(data)[0]) if len(data) == CODE.size else None
        with self._lock:
            os.close(self._process)
            self._process = -1
        return code

    def kill(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._process >= 0:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class WarmParentAddress:
    """A parent that runs, as its record says; every call may find that it does not any more."""

    folder: Path
    record: Record

    @property
    def socket(self) -> Path:
        return socket_path(self.folder, self.record.key)

    def check(self, now: Circumstances) -> None:
        """Raise NotTaken unless a fork would be what a fresh child is."""
        with _naming_silence():
            answer, _ = ask(self.socket, Check(now), timeout_s=_ANSWER_S)
        _expect(answer, Fits)

    def fork(self, channel: int, lifeline: int, *, name: str, now: Circumstances) -> TakenChild:
        """As `fork_warm_child`."""
        return fork_warm_child(self.socket, channel, lifeline, name=name, now=now)

    def status(self) -> Status:
        """Raise NotTaken when it does not answer."""
        with _naming_silence():
            answer, _ = ask(self.socket, GetStatus(), timeout_s=_ANSWER_S)
        return _expect(answer, Status)

    def stop(self) -> None:
        """End it: by asking, then by signals; what it forked lives on."""
        ends: list[signal.Signals | None] = [None, signal.SIGTERM, signal.SIGKILL]
        try:
            ask(self.socket, Stop(), timeout_s=_ANSWER_S)
        except OSError:
            ends.pop(0)
        for number in ends:
            if number is not None:
                end_by_signal(self.record, number)
            if self._is_gone(_END_S):
                break
        remove_record(self.folder, self.record)

    def _is_gone(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while is_running(self.record.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not is_running(self.record.pid)


def fork_warm_child(place: Path, channel: int, lifeline: int, *, name: str, now: Circumstances) -> TakenChild:
    """Take a process that holds these descriptors and writes where this one does; raises NotTaken."""
    ours, theirs = socket.socketpair()
    try:
        with theirs, _naming_silence():
            descriptors = (channel, lifeline, theirs.fileno(), 1, 2)
            answer, received = ask(place, Fork(now, name), descriptors=descriptors, timeout_s=_ANSWER_S)
        taken = _expect(answer, Taken)
        if len(received) != 1:
            raise NotTaken(["its process did not arrive; are too many files open here (`ulimit -n`)?"])
    except BaseException:
        ours.close()
        raise
    return TakenChild(taken.pid, process=received[0], report=ours)


def find_warm_parents(
    *,
    on_problem: Callable[[str], None] = lambda text: None,
    on_dead: Callable[[Record], None] = lambda record: None,
    on_foreign: Callable[[Record], None] = lambda record: None,
) -> list[WarmParentAddress]:
    """Return this user's parents, ready or not; a folder that others could use is not looked into.

    One that has been killed is told once, with its record, and one of another container each time. Only Linux has
    what they need.
    """
    if sys.platform != "linux":
        return []
    folder = warm_folder()
    if (problem := not_private(folder)) is not None:
        on_problem(problem)
        return []
    return [
        WarmParentAddress(folder, record) for record in read_records(folder, on_dead=on_dead, on_foreign=on_foreign)
    ]


@contextlib.contextmanager
def _naming_silence() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise NotTaken([f"it did not answer within {_ANSWER_S:.0f} s"]) from error
    except OSError as error:
        raise NotTaken([f"it cannot be asked: {error.strerror or error}"]) from error


def _expect(answer: Answer, kind: type[AnswerT]) -> AnswerT:
    if isinstance(answer, Refused):
        raise NotTaken(answer.reasons)
    if not isinstance(answer, kind):
        raise NotTaken([f"it answered {type(answer).__name__}"])
    return answer
