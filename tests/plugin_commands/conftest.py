"""Folders of installed packages for `graftlm plugins`, which is asked through the real command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import DUMMY_MODEL, DUMMY_PLATFORM, Site, build_wheels, run_graftlm

Ask = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="session")
def example_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheels of the dummy platform and the dummy model."""
    return build_wheels([DUMMY_PLATFORM, DUMMY_MODEL], tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def installed(tmp_path: Path) -> Site:
    """An empty folder of installed packages."""
    return Site(tmp_path / "site")


@pytest.fixture
def ask(installed: Site) -> Ask:
    """Run `graftlm plugins WORDS --json` over the folder; returns exit code, what it answered, and stderr."""

    def run(*words: str) -> tuple[int, Any, str]:
        done = run_graftlm("plugins", *words, "--json", env=installed.environment)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


@pytest.fixture
def zoo(installed: Site) -> Site:
    """A plugin for each state: one that works, raises, is too new, is not needed."""
    general = {"works": "zoo_works:register"}
    installed.write(
        "zoo-works", entry_points={"general_plugins": general, "models": {"ZooForCausalLM": "zoo_works:Nothing"}},
        files={"zoo_works.py": "def register():\n    print('chatty')\n"},
    )  # fmt: skip
    installed.write(
        "zoo-raises", entry_points={"general_plugins": {"raises": "zoo_raises:register"}},
        files={"zoo_raises.py": "def register():\n    raise RuntimeError('no driver')\n"},
    )  # fmt: skip
    installed.write(
        "zoo-new", entry_points={"general_plugins": {"new": "zoo_new:register"}},
        files={"zoo_new/__init__.py": "", "zoo_new/graftlm_plugin.toml": 'api = ">=9.0"\n'},
    )  # fmt: skip
    return installed
