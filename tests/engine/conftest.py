from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "executor"))  # fake_worker, also for child processes


@pytest.fixture
def host():
    """A plugin host without outside plugins, on the CPU platform; taken back after the test."""
    from graftlm.platforms.bootstrap import bootstrap_frontend
    from graftlm.plugins.current import find_host, hold_host
    from graftlm.plugins.selection import Selection

    before = find_host()
    yield bootstrap_frontend(Selection(no_plugins=True), platform="cpu")
    hold_host(before)
