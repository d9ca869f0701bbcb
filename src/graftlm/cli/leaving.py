"""Ends a finished command that somebody's thread would keep; ours are over by then. It knows no command."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from graftlm.processes.exit_functions import call_exit_functions

#: What threads may use to end by themselves, as those of an idle pool do, before they are left behind.
GRACE_S = 0.5


def leave_threads_behind(code: int) -> None:
    """Let the process end in order; threads that keep it for longer than `GRACE_S` are named and left behind."""
    if _strays():
        threading.Thread(target=_cut_short, args=(code,), name="end of the command", daemon=True).start()


def _strays() -> list[threading.Thread]:
    """Return the threads that the interpreter waits for."""
    return [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]


def _cut_short(code: int) -> None:
    deadline = time.monotonic() + GRACE_S
    while (strays := _strays()) and time.monotonic() < deadline:
        strays[0].join(deadline - time.monotonic())
    if not strays:
        return
    print(
        f"graftlm: warning: still running: {', '.join(t.name for t in strays)}; a plugin started what no one ends, "
        "and it ends with the process (start threads with daemon=True)",
        file=sys.stderr,
    )
    call_exit_functions()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
