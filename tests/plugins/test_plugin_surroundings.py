"""A general plugin that changes what the whole process relies on: it is told, and put back."""

from __future__ import annotations

import pytest
from plugin_packages import Site, run_graftlm


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import sys; sys.stdout = sys.stderr = None", "another sys.stdout and another sys.stderr"),
        ("import sys; sys.path.clear()", "a sys.path without "),
        ("import sys; sys.setrecursionlimit(90)", "a recursion limit of 90"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "another handler of SIGTERM"),
    ],
)
def test_what_a_general_plugin_breaks_is_mended(tmp_path, tiny_llama, body, said):
    """The answer comes, and a warning of each process names the plugin and what it left."""
    site = Site(tmp_path / "site").write(
        "hostile",
        entry_points={"general_plugins": {"breaks": "hostile:target"}},
        files={"hostile.py": f"def target():\n    {body}\n"},
    )
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--max-tokens", "2", env=site.environment)

    told = [
        line for line in done.stderr.splitlines() if "plugin_change_undone 'breaks' of hostile 1.0: it left" in line
    ]
    assert done.returncode == 0, done.stderr
    assert len(told) == 2 and all(said in line and "which was put back" in line for line in told)


def test_what_is_only_added_stays(tmp_path):
    """A longer path and a higher limit are a plugin's right, and are not noted."""
    body = "import sys; sys.path.append('/more'); sys.setrecursionlimit(5000)"
    site = Site(tmp_path / "site").write(
        "adding",
        entry_points={"general_plugins": {"adds": "adding:target"}},
        files={"adding.py": f"def target():\n    {body}\n"},
    )
    done = run_graftlm("plugins", "list", env=site.environment)

    assert done.returncode == 0
    assert "note:" not in done.stdout and "plugin_change_undone" not in done.stderr


def closing(tmp_path, body, *, roles=""):
    """A plugin that closes descriptors which it did not open, or tries to."""
    return Site(tmp_path / "site").write(
        "closing",
        entry_points={"general_plugins": {"closes": "closing:target"}},
        files={"closing/__init__.py": body, "closing/graftlm_plugin.toml": roles},
    )


def test_a_plugin_that_closes_a_range_of_descriptors_is_kept_from_it(tmp_path, tiny_llama):
    """It failed like any other, by name in each process, and the answer comes."""
    site = closing(tmp_path, "import os\ndef target():\n    os.closerange(3, 256)\n")
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--max-tokens", "2", env=site.environment)

    told = [line for line in done.stderr.splitlines() if "'closes' of closing 1.0 failed" in line]
    assert done.returncode == 0, done.stderr
    assert [("front end" in line, "engine core" in line) for line in told] == [(True, False), (False, True)]
    assert all("it called os.closerange(3, 256), and nothing was closed" in line for line in told)


@pytest.mark.parametrize(("role", "process"), [("frontend", "front end"), ("worker", "engine core")])
@pytest.mark.parametrize("where", ["at import", "when called"])
def test_a_plugin_that_closes_them_one_by_one_ends_the_start_by_name(tmp_path, tiny_llama, role, process, where):
    """No process can go on without its sockets: one sentence names the plugin and the process, and no traceback."""
    loop = """
import contextlib, os
def close_all():
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.close(descriptor)
"""
    body = loop + ("close_all()\ntarget = dict\n" if where == "at import" else "target = close_all\n")
    site = closing(tmp_path, body, roles=f'[plugin.closes]\nroles = ["{role}"]\n')
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--max-tokens", "2", env=site.environment)

    told = f"graftlm: error: general plugin 'closes' of closing 1.0 failed in process '{process}'"
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith(told)]) == 1
    assert "it closed file descriptors that it had not opened" in done.stderr
