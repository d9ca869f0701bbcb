from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PRELUDE = """
import os, sys, time
from graftlm.processes.shutdown import ShutdownInterrupt, install_shutdown_handlers
request = install_shutdown_handlers()
"""


def run(script: str, *signals: int, apart_s: float = 0) -> subprocess.CompletedProcess[str]:
    """Run a script; send it each signal when it has printed one more line, and `apart_s` seconds have passed."""
    process = subprocess.Popen([sys.executable, "-c", PRELUDE + script], stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline()]
    for number in signals:
        if len(lines) > 1:
            time.sleep(apart_s)
        process.send_signal(number)
        lines.append(process.stdout.readline())
    rest, _ = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, "".join(lines) + rest)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_start_up_unwinds_it(number):
    """Before anybody listens, the first signal raises in the main thread, wherever that is."""
    ended = run(
        """
try:
    print("starting", flush=True)
    time.sleep(1000)
except ShutdownInterrupt as why:
    print(why, request.requested.is_set())
""",
        number,
    )

    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1] == f"{number.name} True"


def test_a_signal_where_nothing_can_be_raised_is_not_lost():
    """In `__del__` the interpreter would print the interrupt and go on; it comes again, and nothing is printed."""
    ended = run(
        """
import signal
sys.stderr = sys.stdout

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):
            pass

try:
    print("starting", flush=True)
    last = Last()
    del last
    time.sleep(1000)
except ShutdownInterrupt as why:
    print(why)
""",
    )

    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1:] == ["SIGTERM"]


def test_a_signal_while_code_is_compiled_is_not_lost():
    """Where it folds constants the interpreter drops every error but KeyboardInterrupt; starts compile modules."""
    ended = run(
        """
import signal
signal.signal(signal.SIGALRM, request.on_signal)
source = "number = 2**63 - 1\\n" * 100_000
try:
    print("starting", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    compile(source, "module.py", "exec")
    print("went on")
except ShutdownInterrupt as why:
    print(why)
""",
    )

    assert ended.stdout.splitlines()[1:] == ["SIGALRM"]


def test_signal_while_serving_calls_back():
    """Once a callback is registered, a signal calls it and raises nothing; a quick second one is the same wish."""
    ended = run(
        """
import signal
from graftlm.processes import shutdown
shutdown._SAME_WISH_S = 1000  # on a busy machine nothing is quick
calls, handled = [], []
request.add_callback(lambda: calls.append(1))
def handle(number, frame):
    request.on_signal(number, frame)
    handled.append(number)
    print("handled", flush=True)
signal.signal(signal.SIGINT, handle)
print("serving", flush=True)
while len(handled) < 2:
    time.sleep(0.01)
print(len(calls))
""",
        signal.SIGINT,
        signal.SIGINT,
    )

    assert (ended.returncode, ended.stdout.split()) == (0, ["serving", "handled", "handled", "1"])


def test_second_wish_ends_at_once():
    """A second signal, more than a second after the first, ends the process though its orderly end hangs."""
    ended = run(
        """
request.add_callback(lambda: print("asked", flush=True))
print("hanging", flush=True)
while True:
    time.sleep(0.05)
""",
        signal.SIGTERM,
        signal.SIGTERM,
        apart_s=1.2,
    )

    assert ended.stdout.split() == ["hanging", "asked"]
    assert ended.returncode == 128 + signal.SIGTERM


def test_late_callback_learns_of_an_early_signal():
    """A callback added after the signal is called at once, so no signal falls between two phases of start-up."""
    from graftlm.processes.shutdown import ShutdownRequest

    request = ShutdownRequest()
    request.request("test")
    calls = []
    request.add_callback(lambda: calls.append(os.getpid()))

    assert calls == [os.getpid()]
