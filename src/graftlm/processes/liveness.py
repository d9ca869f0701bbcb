"""Tells whether a process that is not our child still runs, and sees to its end; it starts none."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def is_running(pid: int) -> bool:
    """False also for a zombie, which only waits to be reaped by whoever has inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists() and _answers(pid)
    except ProcessLookupError:  # it ended while it was read
        return False
    return state not in ("Z", "X")


def see_gone(pids: Iterable[int], *, limit_s: float) -> None:
    """Wait until processes that are about to end have ended, and kill those that have not after `limit_s`.

    Such a one is stopped, hangs in native code, or is held by what plugin code forked from its parent.
    """
    deadline = time.monotonic() + limit_s
    while (pids := list(filter(is_running, pids))) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
