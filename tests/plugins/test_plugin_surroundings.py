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
