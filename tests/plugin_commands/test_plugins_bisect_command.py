"""`graftlm plugins bisect`: names the plugin that breaks a command, by halving."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.cli.plugins.bisect import NothingToFind, bisect
from graftlm.plugins import Plugin

MANY = [
    Plugin(point="general_plugins", name=f"p{i}", value="m:f", distribution=f"d{i}", version="1") for i in range(20)
]


class Command:
    """Fails as long as one of `culprits` is enabled; counts its runs."""

    def __init__(self, *culprits: Plugin, broken: bool = False) -> None:
        self.culprits = set(culprits)
        self.broken = broken
        self.runs = 0

    def __call__(self, without: Sequence[Plugin]) -> bool:
        self.runs += 1
        return not self.broken and self.culprits <= set(without)


@pytest.mark.parametrize("place", [0, 7, 19])
def test_one_culprit_is_found_in_the_logarithm_of_runs(place):
    """Wherever it stands: two runs to know that there is one, then halving."""
    command = Command(MANY[place])

    assert bisect(MANY, command) == [MANY[place]]
    assert command.runs <= 3 + math.ceil(math.log2(len(MANY)))


def test_several_culprits_are_all_found():
    """Each with a search of its own."""
    assert set(bisect(MANY, Command(MANY[3], MANY[4], MANY[15]))) == {MANY[3], MANY[4], MANY[15]}


def test_a_lone_suspect_needs_no_search():
    """It fails with it and works without it."""
    assert bisect(MANY[:1], Command(MANY[0])) == MANY[:1]


def test_what_no_plugin_breaks_is_said():
    """A command that works, and one that never does."""
    with pytest.raises(NothingToFind, match="works with all plugins"):
        bisect(MANY, Command())
    with pytest.raises(NothingToFind, match="fails without the plugins"):
        bisect(MANY, Command(broken=True))


@pytest.fixture
def breaking(installed: Site) -> Site:
    """Four plugins; the third makes every start fail, and the model is nowhere."""
    for i in range(4):
        source = (
            "def detect():\n    raise OSError('driver too old')\n" if i == 2 else "def detect():\n    return None\n"
        )
        installed.write(
            f"chip-{i}", entry_points={"platform_plugins": {f"chip{i}": f"chip_{i}:detect"}},
            files={f"chip_{i}.py": source},
        )  # fmt: skip
    return installed


@pytest.mark.parametrize("command", [["plugins", "list"], ["sh", "-c", "graftlm plugins list"]])
def test_the_command_line_names_the_plugin(breaking, command, monkeypatch):
    """Of a graftlm command by flag, of any other program by environment."""
    import sys
    from pathlib import Path

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    done = run_graftlm("plugins", "bisect", "--json", "--", *command, env=breaking.environment)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [c["plugin"] for c in told["culprits"]] == ["chip-2:chip2"]
    assert "driver too old" in told["runs"][0]["last_line"]


def test_a_server_that_gets_ready_works(installed, tiny_llama):
    """The server is ended once it is ready, and there is nothing to find."""
    installed.write(
        "harmless", entry_points={"general_plugins": {"harmless": "harmless:register"}},
        files={"harmless.py": "def register():\n    pass\n"},
    )  # fmt: skip
    done = run_graftlm("plugins", "bisect", "--", "serve", str(tiny_llama), "--port=0", env=installed.environment)

    assert done.returncode == 1
    assert "run 1: with all plugins: works (ready)" in done.stdout
    assert "there is nothing to find" in done.stderr
