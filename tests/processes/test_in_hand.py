"""Programs are started so that a signal, whenever it comes, leaves none behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import graftlm
from graftlm.processes.liveness import is_running

#: Who starts what ends by itself when its pipe to us closes, and who is the one place for all else.
ALLOWED = {"processes/interpreter.py", "processes/in_hand.py", "testing/elsewhere.py"}

SCRIPT = """
import os, signal, subprocess, sys, time
from graftlm.processes.in_hand import start_in_hand
from graftlm.processes.shutdown import ShutdownInterrupt, install_shutdown_handlers

install_shutdown_handlers()
real = subprocess.Popen

def born(*args, **options):
    process = real(*args, **options)
    print(process.pid, flush=True)
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(100):
        pass
    return process

subprocess.Popen = born
try:
    start_in_hand([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
except ShutdownInterrupt as why:
    print(why, signal.getsignal(int(sys.argv[1])).__name__)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_birth_of_a_program_leaves_none_behind(number):
    """It counts once the program is in hand, which is ended; signals mean afterwards what they meant before."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(int(number))], capture_output=True, text=True)

    pid, *rest = done.stdout.split()
    assert rest == [number.name, "on_signal"], done.stderr
    assert not is_running(int(pid))


def test_no_other_place_starts_programs():
    """`subprocess` alone lets go of a program when a signal comes while it is born."""
    source = Path(graftlm.__file__).parent
    starting = re.compile(r"subprocess\.(Popen|run|call|check_call|check_output)\(")
    found = {
        file.relative_to(source).as_posix()
        for file in source.rglob("*.py")
        if starting.search(file.read_text(encoding="utf-8"))
    }

    assert found == ALLOWED
