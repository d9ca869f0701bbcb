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


def run(script: str, *signals: tuple[float, int]) -> subprocess.CompletedProcess[str]:
    """Run a script; once it has printed a line, send it each signal after its delay."""
    process = subprocess.Popen([sys.executable, "-c", PRELUDE + script], stdout=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    for delay_s, number in signals:
        time.sleep(delay_s)
        process.send_signal(number)
    rest, _ = process.communicate(timeout=20)
    return subprocess.CompletedProcess(process.args, process.returncode, first + rest)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_start_up_unwinds_it(number):
    """Before anybody listens, the first signal raises in the main thread, wherever that is."""
    ended = run(
        """
try:
    print("starting", flush=True)
    time.sleep(30)
except ShutdownInterrupt as why:
    print(why, request.requested.is_set())
""",
        (0, number),
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
    time.sleep(30)
except ShutdownInterrupt as why:
    print(why)
""",
    )

    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1:] == ["SIGTERM"]


def test_signal_while_serving_calls_back():
    """Once a callback is registered, a signal calls it and raises nothing; a quick second one is the same wish."""
    ended = run(
        """
import threading
done = threading.Event()
calls = []
request.add_callback(lambda: (calls.append(1), done.set()))
print("serving", flush=True)
done.wait()
time.sleep(0.3)
print(len(calls))
""",
        (0, signal.SIGINT),
        (0.1, signal.SIGINT),
    )

    assert (ended.returncode, ended.stdout.split()[1]) == (0, "1")


def test_second_wish_ends_at_once():
    """A second signal, more than a second after the first, ends the process though its orderly end hangs."""
    ended = run(
        """
request.add_callback(lambda: None)
print("hanging", flush=True)
while True:
    time.sleep(0.05)
""",
        (0, signal.SIGTERM),
        (1.2, signal.SIGTERM),
    )

    assert ended.returncode == 128 + signal.SIGTERM


def test_late_callback_learns_of_an_early_signal():
    """A callback added after the signal is called at once, so no signal falls between two phases of start-up."""
    from graftlm.processes.shutdown import ShutdownRequest

    request = ShutdownRequest()
    request.request("test")
    calls = []
    request.add_callback(lambda: calls.append(os.getpid()))

    assert calls == [os.getpid()]
