"""Runs a command apart from this process: what it leaves running ends with it, and holds up nobody.

Its output goes to files and not to pipes, which a process left behind would keep open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from graftlm.processes.in_hand import start_in_hand


def run_apart(
    command: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `command` with `given` on stdin, in a process group of its own, which is killed in the end.

    Raises subprocess.TimeoutExpired with the output so far.
    """
    with tempfile.TemporaryFile() as words, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        words.write(given)
        words.seek(0)
        process = start_in_hand(command, stdin=words, stdout=output, stderr=errors, process_group=0)
        late = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        said, complained = output.read(), errors.read()
    if late:
        raise subprocess.TimeoutExpired(command, timeout_s or 0.0, output=said, stderr=complained)
    return subprocess.CompletedProcess(command, process.returncode, said, complained)
