from __future__ import annotations

import importlib
import signal
import subprocess
import sys

import pytest

from graftlm.cli import failures
from graftlm.cli.main import COMMANDS, main
from graftlm.config.arguments import UsageError
from graftlm.config.errors import InvalidOption
from graftlm.contracts.errors import StartupError
from graftlm.plugins.errors import PluginFailed, UnresolvedPath
from graftlm.processes.shutdown import ShutdownInterrupt
from graftlm.version import __version__


def test_version_and_help_are_printed(capsys):
    """The two things that must always work."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"graftlm {__version__}\n"
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_the_module_is_the_command():
    """`python -m graftlm` is `graftlm`."""
    done = subprocess.run(
        [sys.executable, "-m", "graftlm", "--version"], capture_output=True, text=True, timeout=60
    )

    assert done.stdout == f"graftlm {__version__}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(closed):
    """A service manager may close them: what would have been printed is gone, and no socket takes their place."""
    command = f"'{sys.executable}' -m graftlm plugins --json {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line():
    """Nobody learns more from a traceback."""
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m graftlm plugins > /dev/full"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert done.stderr == "graftlm: error: OSError: [Errno 28] No space left on device\n"


def test_version_is_fast():
    """Nobody waits for a version: of ours it imports one module beside the number itself, and nothing large."""
    command = [sys.executable, "-X", "importtime", "-m", "graftlm", "--version"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr
    imported = {line.rpartition("|")[2].strip() for line in told.splitlines()}

    ours = {name for name in imported if name.partition(".")[0] == "graftlm"}
    assert ours == {"graftlm", "graftlm.cli", "graftlm.cli.main", "graftlm.version"}
    assert not imported & {"argparse", "asyncio", "importlib.metadata", "msgspec", "numpy", "torch"}


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    """Exit code 2, as for every wrong command line."""
    assert main(["srve"]) == 2

    assert "did you mean serve" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    """Help runs no plugin and reads no other flag."""
    assert main([name, "--no-such-flag", "--help"]) == 0

    assert f"usage: graftlm {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("unknown flag --x"), 2),
        (InvalidOption("--port", 1, problem="taken"), 1),
        (StartupError("no such model"), 1),
    ],
)
def test_an_error_on_purpose_is_one_line(error, code, capsys, monkeypatch):
    """No traceback, the text last, and the exit code tells usage from failure."""
    _run_raising(monkeypatch, error)

    assert main(["fetch", "x"]) == code

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"graftlm: error: {error}")


def test_debugging_shows_the_traceback(capsys, monkeypatch):
    """GRAFTLM_DEBUG=1 is for the one who looks for the cause."""
    monkeypatch.setenv("GRAFTLM_DEBUG", "1")
    _run_raising(monkeypatch, StartupError("no such model"))

    assert main(["fetch", "x"]) == 1

    assert "Traceback" in capsys.readouterr().err


def test_a_bug_shows_its_traceback_and_its_notes(capsys, monkeypatch):
    """What was not raised on purpose is for whoever repairs it."""
    error = KeyError("lost")
    error.add_note("in plugin 'acme' of acme-graftlm 1.2")
    _run_raising(monkeypatch, error)

    assert main(["fetch", "x"]) == 1

    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.splitlines()[-1] == "graftlm: error: KeyError: 'lost' [in plugin 'acme' of acme-graftlm 1.2]"


def test_a_plugins_own_traceback_is_shown_with_the_blame_last(capsys, monkeypatch):
    """The author of the plugin needs where, the operator needs who."""
    cause = ZeroDivisionError("division by zero")
    error = PluginFailed("'acme' of acme 1", process="front end", phase="register", cause=cause, cure="disable it")
    error.__cause__ = cause
    _run_raising(monkeypatch, error)

    assert main(["fetch", "x"]) == failures.FAILED

    text = capsys.readouterr().err
    assert text.startswith("ZeroDivisionError")
    assert text.splitlines()[-1].endswith("disable it")


def test_a_misspelt_path_in_an_entry_point_shows_no_traceback(capsys, monkeypatch):
    """Nothing of the plugin has run: its sentence says all."""
    cause = UnresolvedPath("acme:detekt", what="entry point 'acme'", problem="acme has no detekt")
    error = PluginFailed("'acme' of acme 1", process="front end", phase="import", cause=cause, cure="disable it")
    error.__cause__ = cause
    _run_raising(monkeypatch, error)

    assert main(["fetch", "x"]) == failures.FAILED

    (line,) = capsys.readouterr().err.splitlines()
    assert "acme has no detekt" in line and line.endswith("disable it")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["while it waits for a thread", "while modules are taken down"])
def test_a_signal_after_the_end_changes_nothing(number, moment):
    """What a command had to do is done: it keeps its exit code, and no interrupt is shown."""
    script = f"""
import os, signal, sys, threading, time
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, {int(number)})

def follow():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    os.kill(os.getpid(), {int(number)})
    time.sleep(0.1)

if {moment!r} == "while it waits for a thread":
    threading.Thread(target=follow).start()
else:
    sys.last = Last()
sys.argv = ["graftlm", "plugins", "list"]
from graftlm.cli.main import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "platform_plugins" in done.stdout


@pytest.mark.parametrize("error", [ShutdownInterrupt("SIGINT"), KeyboardInterrupt()])
def test_a_signal_ends_a_command_with_code_0(error, capsys, monkeypatch):
    """An end that the user wished for is no failure."""
    _run_raising(monkeypatch, error)

    assert main(["fetch", "x"]) == 0

    assert capsys.readouterr().err == ""


def _run_raising(monkeypatch, error: BaseException) -> None:
    def run(argv, *, shutdown):
        raise error

    monkeypatch.setattr(importlib.import_module("graftlm.cli.fetch"), "run", run)
