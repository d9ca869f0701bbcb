"""`graftlm plugins lock` and `--plugins-locked`: any drift is refused, entry by entry."""

from __future__ import annotations

import pytest
from plugin_packages import Site, run_graftlm


@pytest.fixture
def locked(installed, tmp_path):
    """Two plugins, locked; returns the lock file."""
    for name in ("one", "two"):
        installed.write(
            f"lock-{name}", entry_points={"general_plugins": {name: f"lock_{name}:register"}},
            files={f"lock_{name}.py": "def register():\n    pass\n"},
        )  # fmt: skip
    file = tmp_path / "plugins.lock"
    done = run_graftlm("plugins", "lock", str(file), env=installed.environment)
    assert done.returncode == 0 and f"--plugins-locked {file}" in done.stdout, done.stderr
    return file


def start(site: Site, file, *flags: str):
    return run_graftlm("plugins", "list", "--plugins-locked", str(file), *flags, env=site.environment)


def test_what_was_locked_starts(locked, installed):
    """The same files, the same plugins."""
    assert start(installed, locked).returncode == 0


def test_each_drift_is_an_entry_of_the_error(locked, installed):
    """A changed file, another version, one more, one less: all named, and no plugin runs."""
    (installed.folder / "lock_one.py").write_text("raise SystemExit('a plugin ran')\n")
    (installed.folder / "lock_two-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lock-two\nVersion: 1.1\n"
    )
    installed.write(
        "lock-three", entry_points={"general_plugins": {"three": "lock_three:register"}},
        files={"lock_three.py": "def register():\n    pass\n"},
    )  # fmt: skip
    done = run_graftlm("serve", "no-model", "--plugins-locked", str(locked), env=installed.environment)
    less = start(installed, locked, "--disable-plugin", "one")

    assert done.returncode == 1
    assert "distribution lock-one: its files differ (hash " in done.stderr
    assert "distribution lock-two: version 1.0 is locked, 1.1 is installed" in done.stderr
    assert "plugin general_plugins=lock-three:three: enabled here, and not locked" in done.stderr
    assert f"graftlm plugins lock {locked}" in done.stderr and "a plugin ran" not in done.stderr
    assert "general_plugins=lock-one:one: locked, and here it is disabled: --disable-plugin names it" in less.stderr


def test_a_file_that_is_no_lock_is_said(installed, tmp_path):
    """Missing, or something else: one line with the cure."""
    (tmp_path / "other").write_text("x = 1")
    for file, problem in ((tmp_path / "nowhere", "No such file"), (tmp_path / "other", "it is no lock file")):
        done = start(installed, file)
        assert done.returncode == 1
        assert problem in done.stderr and "`graftlm plugins lock" in done.stderr
