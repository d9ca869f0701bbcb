"""Tells whether a process that is not our child still runs; it starts and ends none."""

from __future__ import annotations

import os
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


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
