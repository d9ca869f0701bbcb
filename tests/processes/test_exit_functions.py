"""What ends with a process, and what plugin code may not end: each is tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from graftlm.processes.apart import run_apart

CUT_SHORT = """
import atexit, os, sys
from graftlm.processes.exit_functions import at_exit, call_exit_functions

at_exit(lambda: print("first", flush=True))
at_exit(lambda: print("second", flush=True))
if "cut" in sys.argv:
    call_exit_functions()
    call_exit_functions()
    os._exit(3)
"""

GUARDED = """
import os, sys
from graftlm.plugins.blame import calling
from graftlm.processes.exit_guard import guard_exits

guard_exits()
guard_exits()
with calling("acme-pkg:acme", "import"):
    try:
        os._exit(9)
    except Exception as error:
        print(type(error).__name__, error.__class__.__mro__[1].__name__, flush=True)
os._exit(4)
"""

LEAVES_ONE = """
import subprocess, sys
print("said")
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid, flush=True)
if "late" in sys.argv:
    import time
    time.sleep(1000)
"""


@pytest.mark.parametrize(("words", "code"), [([], 0), (["cut"], 3)], ids=["in order", "cut short"])
def test_exit_functions_are_called_once_the_latest_first(words, code):
    """By the interpreter, or by whoever ends the process without it."""
    done = subprocess.run([sys.executable, "-c", CUT_SHORT, *words], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout.split()) == (code, ["second", "first"])


def test_the_guard_holds_while_plugin_code_runs_only():
    """An error inside of a call, the real thing outside of it; installing it twice changes nothing."""
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout.split()) == (4, ["PluginExits", "PluginError"])


def test_what_a_command_leaves_running_holds_up_nobody():
    """The output is there as soon as the command has ended, and its child is gone."""
    done = run_apart([sys.executable, "-c", LEAVES_ONE], timeout_s=60)

    said, pid = done.stdout.split()
    assert (done.returncode, said) == (0, b"said")
    for _ in range(600):  # it was killed, and may take a moment to be gone
        if not _is_alive(int(pid)):
            break
        time.sleep(0.05)
    assert not _is_alive(int(pid))


def _is_alive(pid):
    """Tell whether a process runs; one that has ended and that nobody waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_late_command_has_said_what_it_said():
    """The exception carries the output until then."""
    said = []
    for limit_s in (1, 4, 16, 48):  # a busy machine may take its time to start an interpreter
        with pytest.raises(subprocess.TimeoutExpired) as late:
            run_apart([sys.executable, "-c", LEAVES_ONE, "late"], timeout_s=limit_s)
        if said := late.value.stdout.split():
            break

    assert said[0] == b"said"
