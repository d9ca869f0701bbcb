"""Starts a Python interpreter that runs one of our modules; does not know what the module does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from graftlm.processes.shutdown import SIGNALS


def start_interpreter(
    module: str,
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    descriptors: Sequence[int],
    log: int | None = None,
) -> subprocess.Popen[bytes]:
    """Run `python -m module` with the flags of this interpreter and the given descriptors open.

    With `log`, a descriptor, it gets a session of its own that no terminal ends, and says everything there.
    """
    command = [sys.executable, *interpreter_flags(), "-m", module, *arguments]
    # Blocked signals stay blocked across exec: Ctrl-C cannot kill an interpreter that is still starting.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            command, env=dict(env), pass_fds=tuple(descriptors), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=log is not None,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter, with the one that our own processes always get.

    `-P` keeps the working directory out of sys.path, where a stray random.py would shadow the real one.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return list(dict.fromkeys((*flags, "-P")))
