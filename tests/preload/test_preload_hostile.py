"""Warm parents under hostile conditions: stopped, swamped, out of files, forgotten; what could break a start."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from light_parents import end_parent, light_parent, now, num_files, order_for, take, wait_until, with_path

from graftlm.engine.warm_start import find_fitting
from graftlm.processes.failure import ChildFailed
from graftlm.processes.liveness import is_running
from graftlm.processes.warm import client, loaded_files
from graftlm.processes.warm.client import NotTaken
from graftlm.processes.warm.loaded_files import LoadedFiles
from graftlm.processes.warm.place import lost, socket_path
from graftlm.processes.warm.starting import start_warm_parent


def test_the_death_of_a_child_is_noticed_though_its_parent_is_stopped(folder, monkeypatch):
    """A stopped parent tells no exit codes; nobody who waits for the child waits for the parent."""
    monkeypatch.setattr(client, "_CODE_S", 0.5)
    with light_parent(order_for(folder)) as parent:
        killed, ended = take(parent), take(parent)
        for child in (killed, ended):
            child.run("child_functions:echo", b"on")
            child.wait_ready(60)
        os.kill(parent.record.pid, signal.SIGSTOP)
        os.kill(killed.pid, signal.SIGKILL)
        gone = threading.Event()
        killed.add_exit_callback(gone.set)

        assert gone.wait(60)
        assert killed.stop() is None
        ended.add_exit_callback(gone.set)
        assert ended.stop(60) is None
        os.kill(parent.record.pid, signal.SIGCONT)


@pytest.mark.parametrize("warm", [True, False])
def test_a_child_ends_when_its_taker_is_killed(folder, warm):
    """At any moment, with whatever is still unread between them; also one that came from no parent."""
    code = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "import pytest\nfrom light_parents import be_patient, take\nbe_patient(pytest.MonkeyPatch())\n"
        "from graftlm.processes.launch import start_child\n"
        "from graftlm.processes.warm.client import find_warm_parents\n"
        f"child = take(find_warm_parents()[0]) if {warm} else start_child('fresh')\n"
        "child.run('child_functions:echo', b'on'); child.wait_ready(60)\n"
        "print(child.pid, flush=True); time.sleep(1000)\n"
    )
    with light_parent(order_for(folder)):
        with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as taker:
            assert taker.stdout is not None
            pid = int(taker.stdout.readline())
            taker.kill()
        wait_until(lambda: not is_running(pid), "the end of the child")


def test_many_who_ask_at_once_wait_for_their_turn(folder):
    """Also more than the kernel lets wait at a socket: nobody is told that a resource is unavailable."""
    taken, refused = [], []

    def ask() -> None:
        try:
            taken.append(take(parent))
        except NotTaken as error:
            refused.append(str(error))

    with light_parent(order_for(folder)) as parent:
        os.kill(parent.record.pid, signal.SIGSTOP)
        askers = [threading.Thread(target=ask) for _ in range(24)]
        for asker in askers:
            asker.start()
        os.kill(parent.record.pid, signal.SIGCONT)
        for asker in askers:
            asker.join()
        for child in taken:
            child.run("child_functions:echo", b"on")
        answers = [child.wait_ready(60) for child in taken]
        for child in taken:
            child.stop()

    assert refused == []
    assert answers == [b"on"] * 24


@pytest.mark.parametrize("room", [0, 1, 3, 6, 7])
def test_a_parent_that_is_out_of_files_says_so_and_lives(folder, room, monkeypatch):
    """However many descriptors it has left; when there is room again it gives processes as before."""
    with light_parent(order_for(folder)) as parent:
        pid = parent.record.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        open_now = num_files(parent)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + room, before[1]))
        try:
            with monkeypatch.context() as patch:
                patch.setattr(client, "_ANSWER_S", 2.0)
                child = take(parent)
        except NotTaken as error:
            assert any(words in str(error) for words in ("ulimit -n", "Too many open files", "did not answer"))
        else:
            child.stop()
            assert room == 7
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        child = take(parent)
        child.run("child_functions:echo", b"on")
        assert child.wait_ready(60) == b"on"
        child.stop()
        wait_until(lambda: num_files(parent) == open_now, "the parent to close what came")


def test_a_fork_that_fails_is_a_reason(folder, monkeypatch):
    """The parent says what the kernel said, keeps nothing of what came with the question, and lives on."""
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "no_fork.py").write_text(
        "import errno, os\n"
        "def fork(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "os.fork = fork\n"
    )
    os.utime(broken / "no_fork.py", (1e9, 1e9))
    monkeypatch.syspath_prepend(str(broken))
    with light_parent(order_for(folder, modules=("no_fork",)), folders=(broken,)) as parent:
        before = num_files(parent)
        for _ in range(3):
            with pytest.raises(NotTaken, match="it cannot fork: Resource temporarily unavailable"):
                take(parent)

        assert parent.status().taken == 0
        wait_until(lambda: num_files(parent) == before, "the parent to close what came")


@pytest.mark.parametrize("what", ["folder", "record", "socket"])
def test_what_is_lost_is_told(folder, what):
    """A cleaner of temporary files, or the end of a session, may take what makes a parent findable."""
    with light_parent(order_for(folder)) as parent:
        assert lost(folder, parent.record) is None
        match what:
            case "folder":
                shutil.rmtree(folder)
            case "record":
                (folder / f"{parent.record.key}.json").unlink()
            case _:
                socket_path(folder, parent.record.key).unlink()

        assert lost(folder, parent.record) == f"its {'socket' if what == 'socket' else 'record'} is gone"


def test_a_killed_parent_is_told_once(folder, caplog):
    """Whoever counted on it learns why the start is cold; what it left behind is removed."""
    with light_parent(order_for(folder)) as parent, caplog.at_level("INFO"):
        end_parent(parent)
        assert not find_fitting()
        assert f"the warm parent {parent.record.pid} of light has been killed" in caplog.text
        caplog.clear()

        assert not find_fitting()
        assert caplog.text == ""


def test_a_variable_need_not_be_utf_8(folder, monkeypatch):
    """Bytes of any kind reach the child unchanged, and are shown, compared and sent as escapes."""
    odd = os.fsdecode(b"a\xffb")
    monkeypatch.setenv("GRAFTLM_TEST_MARK", "mark")
    monkeypatch.setenv("SOMETHING_ODD", odd)
    with light_parent(order_for(folder)) as parent:
        with pytest.raises(NotTaken, match=r"\$LC_ODD was unset and is 'a.*udcffb'"):
            parent.check(now(LC_ODD=odd))
        child = take(parent)
        child.run("child_functions:report_world", b"")
        world = msgspec.msgpack.decode(child.wait_ready(60))
        environment = Path(f"/proc/{child.pid}/environ")
        child.stop()

    assert world["env"] == "mark"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        assert b"a\xffb" not in environment.read_bytes()


def test_a_working_directory_need_not_be_utf_8(folder, tmp_path, monkeypatch):
    """Nor an entry of sys.path: a child stands where its taker stands."""
    place = tmp_path / os.fsdecode(b"d\xff")
    place.mkdir()
    (place / "odd_module.py").write_text(
        "import os\ndef main(payload, channel):\n    channel.ready(os.getcwdb())\n    channel.recv()\n"
    )
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    with light_parent(order_for(folder)) as parent:
        child = take(parent)
        child.run("odd_module:main", b"")
        assert child.wait_ready(60) == os.fsencode(place)
        child.stop()


@pytest.mark.parametrize(("name", "found"), [("sitecustomize", True), ("usercustomize", True), ("other", False)])
def test_a_module_that_every_interpreter_imports_is_missed(tmp_path, name, found):
    """`site` looks for two modules before anybody could note it; one that comes later makes another process."""
    files = LoadedFiles()
    (tmp_path / f"{name}.py").touch()

    assert bool(files.found_elsewhere([str(tmp_path)])) is found


def test_code_that_every_interpreter_runs_is_compared(tmp_path, monkeypatch):
    """The import hook of an editable install: new, changed or gone; a .pth that names folders is no code."""
    monkeypatch.setattr(loaded_files.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(loaded_files.site, "ENABLE_USER_SITE", False)
    before, hook = LoadedFiles(), tmp_path / "hook.pth"
    (tmp_path / "folder.pth").write_text("/some/folder\n")
    assert before.startup_changed() == []
    hook.write_text("import hook; hook.install()\n")
    assert before.startup_changed() == [f"{hook}, which every interpreter runs as it starts, is not as it was"]
    after = LoadedFiles()
    assert after.startup_changed() == []
    hook.write_text("import hook; hook.install(2)\n")
    assert len(after.startup_changed()) == 1
    hook.unlink()
    assert len(after.startup_changed()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", "scheduling policy was"),
        ("open('/proc/self/oom_score_adj', 'w').write('77')", "out-of-memory score was"),
        ("ctypes.CDLL(None).personality(0x0040000)", "personality was"),
        ("ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)", "THP_enabled was"),
        ("ctypes.CDLL(None).prctl(29, 70000, 0, 0, 0)", "timer slack was"),
        pytest.param(
            "ctypes.CDLL(None).syscall(238, 3, ctypes.byref(ctypes.c_ulong(1)), 64)",
            "memory policy was",
            marks=pytest.mark.skipif(
                platform.machine() != "x86_64" or not Path("/proc/self/numa_maps").exists(), reason="its number"
            ),
        ),
    ],
)
def test_what_the_kernel_hands_down_counts(folder, change, reason):
    """Whatever `chrt`, `choom`, `numactl` or a service manager set for the command is its children's too."""
    code = (
        f"import ctypes, os, sys; sys.path[:] = {sys.path!r}\n{change}\n"
        "import pytest\nfrom light_parents import be_patient, now\nbe_patient(pytest.MonkeyPatch())\n"
        "from graftlm.processes.warm.client import NotTaken, find_warm_parents\n"
        "try: find_warm_parents()[0].check(now())\n"
        "except NotTaken as error: print(error)\n"
    )
    with light_parent(order_for(folder)):
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)

    assert reason in done.stdout, done.stderr


def test_a_handle_that_does_not_arrive_is_a_reason(folder, monkeypatch):
    """Whoever asks may be out of files too."""
    with light_parent(order_for(folder)) as parent:
        asked = client.ask

        def without_handle(*words, **more):
            answer, received = asked(*words, **more)
            for descriptor in received:
                os.close(descriptor)
            return answer, []

        with monkeypatch.context() as patch, pytest.raises(NotTaken, match="its process did not arrive"):
            patch.setattr(client, "ask", without_handle)
            take(parent)
        wait_until(lambda: parent.status().running == 0, "the end of the child that nobody took")


def test_a_parent_that_dies_without_a_word_is_told_with_the_end_of_its_log(folder, tmp_path):
    """Such as one that a native library ends while it is imported."""
    (tmp_path / "fatal.py").write_text(
        "import os, sys\nsys.stderr.write('FATAL: no such library\\n')\nos._exit(2)\n"
    )
    launched = start_warm_parent(order_for(folder, modules=("fatal",)), environment=with_path(tmp_path))
    with pytest.raises(ChildFailed, match=r"exit code 2; the last line of .*\.log: FATAL: no such library"):
        launched.wait_ready(lambda text: None)
    launched.let_go()
