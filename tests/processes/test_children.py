from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from graftlm.processes.failure import ChildFailed
from graftlm.processes.launch import start_child, wait_all_ready
from graftlm.processes.liveness import is_running

METHODS = ["spawn", "forkserver"]
HERE = Path(__file__).parent


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


@pytest.mark.parametrize("method", METHODS)
def test_orders_run_in_order_then_messages_flow(method):
    """A child runs its calls in order, then its main, which exchanges messages with the parent."""
    said = []
    child = start_child("echo", start_method=method)
    child.call("child_functions:remember", b"plan")
    child.call("child_functions:remember", b"more")
    child.run("child_functions:echo", b"config")

    assert child.wait_ready(60, on_status=said.append) == b"plan|more|config"
    assert said == ["nearly there"]
    child.channel.send(b"x" * 1_000_000)
    assert child.receive() == b"echo " + b"x" * 1_000_000
    assert child.exit_code() is None
    child.stop()


@pytest.mark.parametrize("method", METHODS)
def test_child_sees_the_world_of_its_parent(method, monkeypatch, tmp_path):
    """A child has the environment, working directory, sys.path and signal mask that its parent has now."""
    monkeypatch.setenv("GRAFTLM_TEST_MARK", "one")
    monkeypatch.chdir(tmp_path)
    child = start_child("world", start_method=method, env={"GRAFTLM_TEST_MARK": "two"})
    child.run("child_functions:report_world", b"")
    world = msgspec.msgpack.decode(child.wait_ready(60))
    child.stop()

    assert world["env"] == "two"
    assert world["cwd"] == str(tmp_path)
    assert world["path"] == sys.path
    assert world["mask"] == []
    assert world["threads"] == 2, "main and the watch of the parent"
    assert world["torch"] == (method == "forkserver")


def test_forked_child_obeys_its_own_thread_count():
    """Torch in a forked child takes its thread count from the child's environment, not the fork server's."""
    child = start_child("counter", start_method="forkserver", env={"OMP_NUM_THREADS": "3"})
    child.run("child_functions:report_torch_threads", b"")

    assert child.wait_ready(60) == b"3"
    child.stop()


def test_failure_in_an_order_has_cause_and_traceback():
    """An exception before READY reaches the parent with its text, its notes and its traceback."""
    child = start_child("worker 0")
    child.call("child_functions:break_down", b"")
    child.run("child_functions:echo", b"")

    with pytest.raises(ChildFailed) as caught:
        child.wait_ready(60)
    assert caught.value.cause == "worker 0: ZeroDivisionError: three by nothing\nin plugin acme of acme-graftlm 1.0"
    assert "in break_down" in caught.value.traceback
    assert not caught.value.expected
    assert child.exit_code(30) == 1
    child.stop()


def test_error_made_for_the_user_stays_as_it_is():
    """A StartupError of a child is passed on word for word, marked as one that needs no traceback."""
    child = start_child("engine core")
    child.call("child_functions:refuse", b"")

    with pytest.raises(ChildFailed, match=r"^--tensor-parallel-size=2 does not divide 9 heads") as caught:
        child.wait_ready(60)
    assert caught.value.expected
    child.stop()


def test_exit_in_an_order_is_a_failure():
    """Code that calls sys.exit in a child cannot make it vanish without a word."""
    child = start_child("worker 0")
    child.call("child_functions:leave", b"")

    with pytest.raises(ChildFailed, match="SystemExit: 3"):
        child.wait_ready(60)
    child.stop()


@pytest.mark.parametrize("method", METHODS)
def test_death_is_seen_at_once(method):
    """SIGKILL of a child shows on the sentinel, in the callback, and in what receive says."""
    child = start_child("victim", start_method=method)
    child.run("child_functions:echo", b"")
    child.wait_ready(60)
    called = threading.Semaphore(0)
    child.add_exit_callback(called.release)
    os.kill(child.pid, signal.SIGKILL)

    assert select.select([child.sentinel], [], [], 30)[0]
    with pytest.raises(ChildFailed, match=rf"victim: process {child.pid} was killed by SIGKILL"):
        child.receive()
    assert child.exit_code() == -signal.SIGKILL
    child.stop()
    assert called.acquire(timeout=30)
    assert not called.acquire(blocking=False)


def test_exception_after_ready_reaches_the_parent():
    """A main that raises while it serves reports the exception before it ends."""
    child = start_child("echo")
    child.run("child_functions:echo", b"")
    child.wait_ready(60)
    child.channel.send(b"raise")

    with pytest.raises(ChildFailed, match="KeyError: 'no such thing'"):
        child.receive()
    assert child.exit_code(30) == 1
    child.stop()


def test_first_failure_of_several_is_not_delayed_by_the_others():
    """Waiting for all children ends when one fails, though another would never be ready."""
    slow, broken = start_child("slow"), start_child("broken")
    broken.call("child_functions:break_down", b"")

    with pytest.raises(ChildFailed, match="broken: ZeroDivisionError"):
        wait_all_ready([slow, broken], timeout_s=60)
    for child in (slow, broken):
        child.stop()


def test_late_child_is_named():
    """A child that is not ready in time is named with the limit."""
    child = start_child("slow")

    with pytest.raises(ChildFailed, match=r"slow: was not ready after 0.1 s"):
        child.wait_ready(0.1)
    child.stop()


@pytest.mark.parametrize("method", METHODS)
def test_stubborn_child_is_stopped(method):
    """A child that never reads its channel ends by its watch when its parent lets go of it."""
    child = start_child("stubborn", start_method=method)
    child.run("child_functions:be_stubborn", b"")
    child.wait_ready(60)

    assert child.stop(60) == 75


def test_signals_are_left_to_the_parent_but_not_in_what_a_plugin_starts():
    """SIGINT and SIGTERM do nothing to a child, while a program that it starts can still be terminated."""
    child = start_child("helper")
    os.kill(child.pid, signal.SIGINT)  # while the interpreter starts
    child.run("child_functions:start_helper", b"")
    child.wait_ready(60)
    os.kill(child.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGTERM)
    child.channel.send(b"go on")

    assert child.receive() == str(-signal.SIGTERM).encode()
    child.stop()


@pytest.mark.parametrize("method", METHODS)
def test_children_end_when_the_parent_is_killed(method):
    """After SIGKILL of the first process its child, grandchild and fork server are gone."""
    script = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from graftlm.processes.launch import start_child\n"
        f"child = start_child('child', start_method={method!r})\n"
        f"child.run('child_functions:start_grandchild', {method.encode()!r})\n"
        "print(child.pid, child.wait_ready().decode(), flush=True)\n"
        "child.receive()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    family = [int(pid) for pid in parent.stdout.readline().split()]
    family += [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    parent.kill()
    parent.wait()

    assert len(family) == 3
    assert all(wait_gone(pid) for pid in family)


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_cannot_notice_the_end_is_killed(method):
    """One that is stopped, or hangs in native code that lets no thread run, would be left for ever."""
    child = start_child("child", start_method=method)
    child.run("child_functions:start_grandchild", method.encode())
    grandchild = int(child.wait_ready(60))
    os.kill(grandchild, signal.SIGSTOP)
    child.let_go()

    assert child.exit_code(60) is not None
    assert wait_gone(grandchild)
    child.stop()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("payload", [b"", b"ready"])
def test_a_death_is_seen_though_the_channel_stays_open(method, payload):
    """What a plugin forked in the child has the channel, too; whoever waits, reads or writes is told of it."""
    forked: list[str] = []
    child = start_child("forker", start_method=method)
    child.run("child_functions:die_with_the_channel_open", payload)

    with pytest.raises(ChildFailed, match="was killed by SIGKILL"):
        child.wait_ready(60, on_status=forked.append)
        child.send(b"go on")
        child.receive()
    with pytest.raises(ChildFailed, match="was killed by SIGKILL"):
        child.send(b"x" * 10_000_000)
    assert is_running(int(forked[0]))
    os.kill(int(forked[0]), signal.SIGKILL)
    child.stop()


def test_empty_child_ends_when_the_start_is_refused(tmp_path, monkeypatch):
    """A child started ahead of its plan ends at once when its parent lets go, even in the middle of an import."""
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(1000)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    child = start_child("early")
    child.call("endless:never", b"")
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.let_go()

    assert child.exit_code(60) == 75
    child.stop()
