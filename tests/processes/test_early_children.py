"""A child that is started before anybody knows what for, and a library that is linked from its first moment on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from graftlm.processes import child as child_module
from graftlm.processes import early, linking
from graftlm.processes.channel import Channel, FrameKind
from graftlm.processes.child import Order, Setup
from graftlm.processes.launch import start_child
from graftlm.processes.logs import LogSettings
from tests.processes.test_children import wait_gone


@pytest.fixture(autouse=True)
def no_early_child():
    yield
    early.leave_none_behind()
    early._early = early._started = None


def test_the_first_child_that_computes_is_the_early_one():
    """It is taken once, and sees the environment and the folder of its orders, not those of its start."""
    early.start_early("early")
    pid = early._early.process.pid
    child = start_child("computes", env={"GIVEN_LATER": "yes"}, computes=True)
    other = start_child("another", computes=True)
    try:
        assert child.pid == pid
        assert other.pid != pid
        child.run("tests.processes.early_child_work:tell", b"")
        told = msgspec.json.decode(child.wait_ready(60))
        assert told["variable"] == "yes"
        assert told["directory"] == os.getcwd()  # noqa: PTH109
        assert told["path"] == sys.path
    finally:
        child.stop()
        other.stop()


def test_a_child_that_does_not_compute_is_not_the_early_one():
    """Its process has a library in it that such a child would carry for nothing."""
    early.start_early("early")
    pid = early._early.process.pid
    child = start_child("plain")
    assert child.pid != pid
    child.stop()
    early.end_early()
    assert wait_gone(pid)


def test_an_early_child_that_died_is_replaced():
    """Killed before it was taken, it leaves its place to a fresh one."""
    early.start_early("early")
    dead = early._early.process
    dead.kill()
    dead.wait()
    child = start_child("computes", computes=True)
    assert child.pid != dead.pid
    child.run("tests.processes.early_child_work:tell", b"")
    assert child.wait_ready(60)
    child.stop()


def test_an_early_child_ends_with_its_parent():
    """A parent that is killed leaves none, though nobody has told the child anything yet."""
    script = (
        "import os, signal\nfrom graftlm.processes import early\nearly.start_early('early')\n"
        "print(early._early.process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert wait_gone(int(done.stdout))


def test_the_library_is_linked_before_torch_is_imported():
    """The thread has mapped torch's library when it is done, and the interpreter has not imported torch for it."""
    script = (
        "import sys\nfrom graftlm.processes.linking import start_linking\nlinking = start_linking()\n"
        "linking.wait()\nmapped = 'libtorch_cpu' in open('/proc/self/maps').read()\n"
        "print(mapped, 'torch' in sys.modules, linking.seconds > 0, start_linking() is linking)\n"
        "import torch\nprint(torch.ones(2).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True False True True\n2.0\n", done.stderr


def test_without_torch_there_is_nothing_to_link():
    """An interpreter without torch, or with one of another make, starts without it."""
    script = (
        "from types import SimpleNamespace\nfrom graftlm.processes import linking\n"
        "for spec in (None, SimpleNamespace(origin='/elsewhere/torch/__init__.py')):\n"
        "    linking.importlib.util.find_spec = lambda name: spec\n"
        "    print(linking.start_linking())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "None\nNone\n", done.stderr


@pytest.mark.parametrize("argv", [["serve", "--help"], ["doctor"], ["plugins", "--help"]], ids=" ".join)
def test_commands_without_an_engine_start_no_child(argv):
    """Only what will serve pays for a process."""
    script = (
        "import sys\nfrom graftlm.processes import early\n"
        "early.start_early = lambda name: print('STARTED', file=sys.stderr)\n"
        f"sys.argv = ['graftlm', *{argv!r}]\nfrom graftlm.cli.main import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "STARTED" not in done.stderr
    assert done.returncode == 0


def test_a_start_that_is_refused_leaves_no_child():
    """A wrong flag ends the command, and the child that was started before it was read."""
    command = [sys.executable, "-m", "graftlm", "serve", "demo", "--no-such-flag"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    output, _ = server.communicate(timeout=60)
    assert server.returncode == 2, output
    with pytest.raises(ProcessLookupError):  # its session's group is empty
        for _ in range(600):
            os.killpg(server.pid, 0)
            time.sleep(0.05)


class _SlowLibrary:
    """Takes the place of `dlopen`: is linked when it is allowed to be, and tells what it read at its end."""

    def __init__(self):
        self.allowed, self.read = threading.Event(), None

    def __call__(self, library, mode):
        assert self.allowed.wait(60)
        self.read = os.environ.get("GIVEN_LATER"), os.environ.get("OF_A_PLUGIN")


@pytest.fixture
def slow_library(monkeypatch):
    slow = _SlowLibrary()
    begun = linking.Linking.__new__(linking.Linking)
    begun.begun, begun.seconds, begun._load = 0.0, 0.0, slow
    begun._thread = threading.Thread(target=begun._run, args=("library",), daemon=True)
    begun._thread.start()
    monkeypatch.setattr(linking, "_linking", begun)
    yield slow
    slow.allowed.set()
    begun.wait()


@pytest.fixture
def own_process_kept(monkeypatch):
    """What `_apply_setup` changes of this process is changed back."""
    before = dict(os.environb)
    monkeypatch.setattr(child_module, "configure_logging", lambda *arguments: None)
    monkeypatch.setattr(child_module, "_in_main", threading.Event())
    yield
    os.environ.clear()
    os.environb.update(before)


def _setup(**environment):
    given = dict(os.environb) | {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    return Setup(
        name="early", sys_path=[os.fsencode(folder) for folder in sys.path], cwd=os.getcwdb(),  # noqa: PTH109
        environment=given, log=LogSettings(),
    )  # fmt: skip


def test_the_environment_does_not_change_while_a_library_is_linked(slow_library, own_process_kept):
    """Libraries read it with functions that nothing may run beside: the process would crash, once in a while."""
    threading.Timer(0.2, slow_library.allowed.set).start()
    child_module._apply_setup(_setup(GIVEN_LATER="yes"))
    assert os.environ["GIVEN_LATER"] == "yes"
    assert slow_library.read == (None, None)


def test_the_same_environment_is_not_waited_for(slow_library, own_process_kept):
    """The usual early child has it already, and goes on importing beside the library."""
    child_module._apply_setup(_setup())
    assert linking._linking._thread.is_alive()


def test_what_may_run_plugins_runs_after_the_library_is_linked(slow_library, own_process_kept):
    """Plugin code may change the environment, too."""
    ours, theirs = Channel.pair()
    ours.send_frame(
        FrameKind.RUN,
        msgspec.msgpack.encode(Order(function="tests.processes.early_child_work:set_variable", payload=b"")),
    )
    threading.Timer(0.2, slow_library.allowed.set).start()
    with theirs:
        assert child_module._serve_orders(Channel(theirs)) == 0
    ours.close()
    assert os.environ["OF_A_PLUGIN"] == "yes"
    assert slow_library.read == (None, None)
