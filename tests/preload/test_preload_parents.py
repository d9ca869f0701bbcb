"""What a warm parent promises whoever takes a process from it, and what it refuses; with nothing heavy in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from light_parents import FUNCTIONS, end_parent, light_parent, now, order_for, take, wait_until, with_path

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.engine.warm_start import find_fitting, start_warm
from graftlm.processes.child import Order
from graftlm.processes.failure import ChildFailed
from graftlm.processes.launch import start_child
from graftlm.processes.liveness import is_running
from graftlm.processes.warm import client, messages
from graftlm.processes.warm.client import NotTaken, find_warm_parents
from graftlm.processes.warm.place import make_private, socket_path
from graftlm.processes.warm.starting import start_warm_parent


def test_a_taken_process_is_what_a_fresh_child_is(folder, monkeypatch, tmp_path):
    """It has this process's environment, directory and sys.path, its own session and name, and one thread more."""
    monkeypatch.setenv("GRAFTLM_TEST_MARK", "one")
    with light_parent(order_for(folder)) as parent:
        monkeypatch.setenv("GRAFTLM_TEST_MARK", "two")
        monkeypatch.chdir(tmp_path)
        child = take(parent)
        child.run("child_functions:report_world", b"")
        world = msgspec.msgpack.decode(child.wait_ready(60))
        words = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        session = os.getsid(child.pid)
        assert child.stop() == 0

    assert world["env"] == "two"
    assert world["cwd"] == str(tmp_path)
    assert world["path"] == sys.path
    assert world["threads"] == 2, "main and the watch of the parent"
    assert world["mask"] == []
    assert words.startswith(b"graftlm taken") and b"warm.parent" not in words
    assert session == child.pid


def test_a_taken_process_tells_its_exit_code_and_failure(folder):
    """While the parent lives a death has its code, and an exception its text."""
    with light_parent(order_for(folder)) as parent:
        child, failing = take(parent), take(parent, "failing")
        child.run("child_functions:echo", b"here")
        failing.call("child_functions:break_down", b"")
        assert child.wait_ready(60) == b"here"
        os.kill(child.pid, signal.SIGKILL)

        assert child.exit_code(60) == -signal.SIGKILL
        with pytest.raises(ChildFailed, match="failing"):
            failing.wait_ready(60)
        assert failing.exit_code(60) == 1
        assert parent.status().taken == 2
        child.stop()
        failing.stop()


@pytest.mark.parametrize("moment", ["before its setup", "before it is ready", "while it works"])
def test_a_taken_process_outlives_its_parent(folder, moment):
    """Killing the parent harms nobody; only the exit code is not known any more."""
    with light_parent(order_for(folder)) as parent:
        if moment == "before its setup":
            held = []

            def fork(*ends):
                held.append(parent.fork(*ends, name="taken", now=now()))
                end_parent(parent)
                return held[0]

            child = start_child("taken", fork=fork)
        else:
            child = take(parent)
        if moment == "before it is ready":
            end_parent(parent)
        child.run("child_functions:echo", b"alive")
        assert child.wait_ready(60) == b"alive"
        if moment == "while it works":
            end_parent(parent)
        for _ in range(3):
            child.send(b"more")
            assert child.receive() == b"echo more"
        assert find_warm_parents() == []

        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(child.pid), "the end of the child")
        with pytest.raises(ChildFailed, match="ended without an exit code"):
            child.receive()
        assert child.stop() is None


def test_a_taken_process_ends_with_whoever_took_it(folder):
    """Its lifeline is its taker's: the parent lives on."""
    with light_parent(order_for(folder)) as parent:
        child = take(parent)
        child.run("child_functions:echo", b"here")
        child.wait_ready(60)
        child.let_go()

        wait_until(lambda: not is_running(child.pid), "the end of the child")
        wait_until(lambda: parent.status().running == 0, "the parent to notice")
        child.stop()


def test_a_parent_that_dies_while_it_is_asked_gives_nothing(folder, monkeypatch):
    """A socket that nobody answers, a socket file that nobody listens at: each is a sentence, at once or soon."""
    with light_parent(order_for(folder)) as parent:
        os.kill(parent.record.pid, signal.SIGSTOP)
        monkeypatch.setattr(client, "_ANSWER_S", 2.0)
        with pytest.raises(NotTaken, match="did not answer within 2 s"):
            take(parent)
        end_parent(parent)
        with pytest.raises(NotTaken, match="cannot be asked"):
            take(parent)
        stale = socket_path(folder, parent.record.key)
        assert stale.exists()

        assert find_warm_parents() == []
        assert not stale.exists()


def test_a_parent_that_dies_before_it_is_taken_from_means_a_cold_start(folder, caplog):
    """It fitted when it was asked; the reason is said, and whoever asked starts processes of its own."""
    config = EngineConfig()
    with light_parent(order_for(folder)) as parent, caplog.at_level("INFO"):
        assert find_fitting()
        end_parent(parent)

        assert not start_warm(config)
        assert not find_fitting()
    assert "starts cold" in caplog.text and "it cannot be asked" in caplog.text


def test_a_fork_server_is_not_mixed_with_a_warm_parent(folder, caplog):
    """Whoever asked for another start method gets it, and hears why the parent is of no use."""
    with light_parent(order_for(folder)), caplog.at_level("INFO"):
        assert not find_fitting("forkserver")
    assert "--start-method=forkserver was asked for" in caplog.text


def test_what_has_changed_is_named(folder, tmp_path, monkeypatch):
    """A variable, a module's file, a module that would come from elsewhere, and one that could not be imported."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    (first / "warm_module.py").write_text("try:\n    import warm_extra\nexcept ImportError:\n    pass\n")
    os.utime(first / "warm_module.py", (1e9, 1e9))
    monkeypatch.syspath_prepend(str(first))
    with light_parent(order_for(folder, modules=("warm_module",)), folders=(first,)) as parent:
        parent.check(now())
        with pytest.raises(NotTaken, match=r"\$OMP_WAIT_POLICY was .* and is 'active'"):
            parent.check(now(OMP_WAIT_POLICY="active"))
        parent.check(now(OMP_NUM_THREADS="7"))  # which a child is told again
        with monkeypatch.context() as patch:
            patch.setenv("OMP_WAIT_POLICY", "active")  # a child gets the engine's in its place
            patch.setenv("OPENBLAS_NUM_THREADS", "9")
            parent.check(now())
        with pytest.raises(NotTaken, match=r"\$OMP_PROC_BIND was .* and is 'close'"):
            parent.check(now(OMP_PROC_BIND="close"))
        (second / "warm_module.py").write_text("")
        monkeypatch.syspath_prepend(str(second))
        with pytest.raises(NotTaken, match=f"the module warm_module would now come from {second}"):
            parent.check(now())
        (second / "warm_module.py").rename(second / "warm_extra.py")
        with pytest.raises(NotTaken, match="the module warm_extra can be imported now"):
            parent.check(now())
        (second / "warm_extra.py").unlink()
        parent.check(now())
        (first / "warm_module.py").write_text("changed = True\n")

        with pytest.raises(NotTaken, match=r"warm_module\.py has changed"):
            take(parent)
        assert any("warm_module.py" in line for line in parent.status().stale)


def test_limits_and_niceness_count(folder):
    """Whatever a fresh child would take over from its starter must be the parent's too."""
    if os.nice(0) > 16:
        pytest.skip("nobody can be three steps nicer than this process")
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}; os.nice(3)\n"
        "import pytest\nfrom light_parents import be_patient, now\nbe_patient(pytest.MonkeyPatch())\n"
        "from graftlm.processes.warm.client import NotTaken, find_warm_parents\n"
        "try: find_warm_parents()[0].check(now())\n"
        "except NotTaken as error: print(error)\n"
    )
    with light_parent(order_for(folder)):
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)

    assert f"niceness was '{os.nice(0)}' and is '{os.nice(0) + 3}'" in done.stdout, done.stderr


def test_a_folder_that_others_could_use_is_not_used(folder, tmp_path, monkeypatch):
    """Neither to be found in, nor to listen in: an open mode, another's folder, a link."""
    said: list[str] = []
    with light_parent(order_for(folder)):
        folder.chmod(0o770)
        assert find_warm_parents(on_problem=said.append) == []
        with pytest.raises(StartupError, match=r"open to others \(mode 0770\).*GRAFTLM_PRELOAD_DIR"):
            make_private(folder)
        folder.chmod(0o700)
        assert len(find_warm_parents()) == 1
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert find_warm_parents(on_problem=said.append) == []
        monkeypatch.undo()
        monkeypatch.setenv("GRAFTLM_PRELOAD_DIR", str(tmp_path / "link"))
        (tmp_path / "link").symlink_to(folder)
        assert find_warm_parents(on_problem=said.append) == []

    assert [
        next(part for part in ("open to others", "belongs to user", "is no folder") if part in line)
        for line in said
    ] == ["open to others", "belongs to user", "is no folder"]


def test_both_ends_refuse_another_user(folder, monkeypatch):
    """The kernel tells who is at the other end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, light_parent(order_for(folder)) as parent:
        messages.check_peer(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        with pytest.raises(messages.ForeignUser, match="user"):
            messages.check_peer(ours)
        with pytest.raises(NotTaken, match="belongs to user"):
            parent.status()


def test_nonsense_does_not_disturb_a_parent(folder):
    """What cannot be read, what comes without its descriptors, and whoever connects and says nothing."""
    with light_parent(order_for(folder, modules=("msgspec",))) as parent:  # and its own patience
        place = str(socket_path(folder, parent.record.key))
        for packet in (b"", b"\xc1", messages.msgspec.msgpack.encode(messages.Fork(now(), "bare"))):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(place)
                stranger.send(packet)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(place)

            assert parent.status().taken == 0


def test_a_parent_that_cannot_be_says_why(folder):
    """A thread that would not survive a fork, and an order that fails."""
    for function, cause in (("start_thread", "left 2 threads"), ("break_down", "no such")):
        order = order_for(folder, calls=(Order(function=f"parent_functions:{function}", payload=b""),))
        launched = start_warm_parent(order, environment=with_path(FUNCTIONS, Path(__file__).parent))

        with pytest.raises(ChildFailed, match=cause):
            launched.wait_ready(lambda text: None)
        assert launched.process.wait(60) != 0
        launched.let_go()
        assert find_warm_parents() == []
