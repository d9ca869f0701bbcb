"""An exception that nobody catches, in a thread or an ending object: whose code it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plugin_packages import Site, run_graftlm

#: The error is raised in a second module of the distribution, and there by the standard library.
_PLUGIN = """
    import threading

    from acme_helpers import refresh

    class Handle:
        def __del__(self):
            raise OSError("device is gone")

    def leave():
        raise SystemExit

    def target():
        for function in (refresh, leave):
            thread = threading.Thread(target=function, name="acme refresh")
            thread.start()
            thread.join()
        Handle()
"""
_HELPERS = """
    import json

    def refresh():
        json.loads("no json")
"""


def test_the_plugin_is_named_whose_thread_raised(tmp_path: Path, tiny_llama: Path) -> None:
    """In each process, after the traceback: plugin, thread, file and line; also of an error in __del__."""
    site = Site(tmp_path / "site").write(
        "acme-threads",
        entry_points={"general_plugins": {"acme": "acme_threads:target"}},
        files={"acme_threads.py": _PLUGIN, "acme_helpers.py": _HELPERS},
    )
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--max-tokens", "2", env=site.environment)

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "plugin_error 'acme' of acme-threads 1.0: " in line]
    assert [("[front end " in line, "[engine core " in line) for line in told] == [(True, False)] * 2 + [
        (False, True)
    ] * 2
    for in_thread, in_object in (told[:2], told[2:]):
        assert (
            "JSONDecodeError: Expecting value" in in_thread and "its thread 'acme refresh' has ended" in in_thread
        )
        assert "acme_helpers.py line 5 in refresh; --disable-plugin acme-threads:acme leaves it out" in in_thread
        assert "OSError: device is gone; the error went nowhere" in in_object and "in __del__" in in_object
    assert done.stderr.count("Exception in thread acme refresh") == 2, "Python's own words stay"


def test_an_error_that_is_no_plugins_has_no_such_line(tmp_path: Path) -> None:
    """The program's own threads are its own matter."""
    site = Site(tmp_path / "site").write(
        "acme-idle", entry_points={"general_plugins": {"acme": "acme_idle:target"}},
        files={
            "acme_idle.py": "import threading\ndef target():\n    t = threading.Thread(target=int, args=('x',))\n"
            "    t.start(); t.join()\n"
        },
    )  # fmt: skip
    done = run_graftlm("plugins", "list", env=site.environment)

    assert done.returncode == 0
    assert "ValueError" in done.stderr and "plugin_error" not in done.stderr


def test_an_error_at_the_very_end_is_told_by_python_alone() -> None:
    """Modules have lost their names by then, and ours must not fail for it."""
    script = (
        "from graftlm.processes import lost_errors\nlost_errors.name_plugins_of_lost_errors()\n"
        "class Late:\n    def __del__(self):\n        raise ValueError('too late')\n"
        "lost_errors.keep = Late()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)

    assert "ValueError: too late" in done.stderr
    assert "TypeError" not in done.stderr
