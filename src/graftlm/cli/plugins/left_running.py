"""What a plugin's code left running in this process: threads, and processes of its own. It judges no code.

Processes are read from /proc where there is one; elsewhere only those of `multiprocessing` are seen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from graftlm.plugins.spelling import counted

#: What a thread or process that is about to end may use for it.
GRACE_S = 0.3

_LONGEST = 60
#: Python's own helper, which ends with the process that it helps.
_HELPER = "multiprocessing.resource_tracker"


def warnings_of_leftovers() -> list[str]:
    """Say what runs beside this process's main thread, with the cure; what is about to end gets a moment."""
    deadline = time.monotonic() + GRACE_S
    while (threads := _threads()) and time.monotonic() < deadline:
        threads[0].join(max(0.0, deadline - time.monotonic()))
    while (processes := _processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    said = []
    if threads := _threads():
        names = ", ".join(f"{t.name} (daemon)" if t.daemon else t.name for t in threads)
        said.append(
            f"it leaves {_count(threads, 'thread')} running: {names}; every process that runs it gets them: start "
            "them where they are first used, with daemon=True, so that a finished command need not wait"
        )
    if processes:
        names = ", ".join(processes.values())
        said.append(
            f"it leaves {_count(processes, 'process')} running: {names}; every process that runs it starts more: "
            "start one where it is first used, and end it with atexit"
        )
    return said


def end_processes() -> None:
    """Kill what `warnings_of_leftovers` would tell of, in whatever session it hides."""
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _count(things: object, word: str) -> str:
    number = len(things)  # type: ignore[arg-type]
    return f"a {word}" if number == 1 else counted(number, word)


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t is not threading.main_thread()]


def _processes() -> dict[int, str]:
    """Return the living children of this process, and what else is in its process group, by pid."""
    if Path("/proc/self/stat").is_file():
        return dict(_from_proc())
    multiprocessing = sys.modules.get("multiprocessing")
    return {c.pid: c.name for c in multiprocessing.active_children()} if multiprocessing is not None else {}


def _from_proc() -> Iterator[tuple[int, str]]:
    me, group = os.getpid(), os.getpgrp()
    own_words = _command_line("self")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == me:
            continue
        try:
            state, parent, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            words = _command_line(entry.name)
        except OSError:  # it ended meanwhile
            continue
        ours = int(parent) == me or (int(its_group) == group == me)
        if ours and state not in "ZX" and not any(_HELPER in word for word in words):
            yield int(entry.name), "a fork of the process" if words == own_words else _as_text(words)


def _command_line(pid: str) -> list[str]:
    return Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def _as_text(words: Sequence[str]) -> str:
    text = " ".join([Path(words[0]).name, *words[1:]])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
