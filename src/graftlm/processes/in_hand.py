"""Starts a program so that no signal comes between its birth and somebody who ends it: it would run on for ever.

Our own children need none of this, they end with their parent. It does not know what the program does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from graftlm.processes.shutdown import signals_held


def start_in_hand(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command` as Popen does; a signal that comes meanwhile ends it at once, and counts then."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals_held():
            process = subprocess.Popen(command, **options)
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    return process
