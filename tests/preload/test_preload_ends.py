"""When a warm parent ends: unwanted, told to, with its launcher, or when nobody can find it any more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from light_parents import FUNCTIONS, light_parent, order_for, take, wait_until, with_path

from graftlm.processes.child import Order
from graftlm.processes.failure import ChildFailed
from graftlm.processes.liveness import is_running
from graftlm.processes.warm import client, lender
from graftlm.processes.warm.client import find_warm_parents
from graftlm.processes.warm.place import log_path, socket_path
from graftlm.processes.warm.starting import start_warm_parent

_CLOCK = """
import pathlib, time, types
from graftlm.processes.warm import lender

def monotonic():
    return time.monotonic() + float(pathlib.Path({file!r}).read_text() or 0)

lender.time = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
lender._LOOK_S = 0.05
"""


def test_a_parent_ends_when_nobody_wants_it(folder, tmp_path, monkeypatch):
    """The time runs from the last process that was taken."""
    place, seconds = tmp_path / "early", tmp_path / "seconds"
    place.mkdir()
    (place / "other_clock.py").write_text(_CLOCK.format(file=str(seconds)))
    os.utime(place / "other_clock.py", (1e9, 1e9))
    monkeypatch.syspath_prepend(str(place))
    seconds.write_text("0")
    order = order_for(folder, modules=("patient_parent", "other_clock"), time_limit_s=1000)
    with light_parent(order, folders=(place,)) as parent:
        seconds.write_text("600")
        assert parent.status().time_left_s <= 400
        child = take(parent)
        assert parent.status().time_left_s > 500
        seconds.write_text("1600")
        wait_until(lambda: not is_running(parent.record.pid), "the end of the parent")

        assert find_warm_parents() == []
        assert not socket_path(folder, parent.record.key).exists()
        child.run("child_functions:echo", b"on")
        assert child.wait_ready(60) == b"on"
        child.stop()


def test_stop_ends_a_parent_and_no_child(folder, monkeypatch):
    """Also one that does not listen any more."""
    with light_parent(order_for(folder)) as parent, light_parent(order_for(folder, model="other")) as other:
        child = take(parent)
        child.run("child_functions:echo", b"on")
        parent.stop()
        os.kill(other.record.pid, signal.SIGSTOP)
        monkeypatch.setattr(client, "_ANSWER_S", 1.0)
        other.stop()

        for ended in (parent, other):
            wait_until(lambda pid=ended.record.pid: not is_running(pid), "the end of a parent")
        assert child.wait_ready(60) == b"on"
        assert list(folder.glob("*.sock")) == []
        child.stop()


class _Begun(Exception):
    """The parent is in the middle of the call, and says nothing for long."""


def _look_for_the_call(text: str) -> None:
    if text == "sleep long":
        raise _Begun


def test_a_parent_that_prepares_ends_with_its_launcher(folder):
    """Ctrl-C in `graftlm preload` leaves nothing behind; until it is ready a parent is not to be asked."""
    order = order_for(folder, calls=(Order(function="parent_functions:sleep_long", payload=b""),))
    launched = start_warm_parent(order, environment=with_path(FUNCTIONS, Path(__file__).parent))
    wait_until(find_warm_parents, "the record")
    (parent,) = find_warm_parents()
    assert not parent.record.ready
    with pytest.raises(_Begun):
        launched.wait_ready(_look_for_the_call)
    launched.let_go()

    assert launched.process.wait(60) != 0
    assert list(folder.glob("*.json")) == []  # else the next start would say that it was killed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_parent_that_prepares_ends_by_any_signal(folder, number):
    """In the foreground a Ctrl-C reaches it, too; it says nothing of its own, and leaves no record."""
    order = order_for(folder, calls=(Order(function="parent_functions:sleep_long", payload=b""),))
    launched = start_warm_parent(order, environment=with_path(FUNCTIONS, Path(__file__).parent))
    wait_until(find_warm_parents, "the record")
    launched.process.send_signal(number)

    assert launched.process.wait(60) == -number
    assert list(folder.glob("*.json")) == []
    assert "Traceback" not in log_path(folder, order.key).read_text()
    with pytest.raises(ChildFailed, match=r"^warm parent: process .* was killed by") as told:
        launched.wait_ready(lambda text: None)
    assert told.value.expected  # and so is said in one line
    launched.let_go()


def test_a_parent_that_nobody_finds_any_more_ends(folder, tmp_path, monkeypatch):
    """It would hold its memory for hours, and no `--stop` would reach it."""
    early = tmp_path / "early"
    early.mkdir()
    (early / "look_often.py").write_text("import graftlm.processes.warm.lender as lender\nlender._LOOK_S = 0.05\n")
    os.utime(early / "look_often.py", (1e9, 1e9))
    monkeypatch.syspath_prepend(str(early))
    with light_parent(order_for(folder, modules=("look_often",)), folders=(early,)) as parent:
        folder.rename(tmp_path / "elsewhere")  # all of it at once, whenever the parent looks
        wait_until(lambda: not is_running(parent.record.pid), "the end of the parent")

    log = log_path(tmp_path / "elsewhere", parent.record.key).read_text()
    assert "reason='its record is gone'" in log
    assert lender._LOOK_S <= 60
