from __future__ import annotations

import pytest

from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.plugins.current import find_host, hold_host
from graftlm.plugins.selection import Selection


@pytest.fixture
def host():
    """A plugin host without outside plugins, on the CPU platform; taken back after the test."""
    before = find_host()
    yield bootstrap_frontend(Selection(no_plugins=True), platform="cpu")
    hold_host(before)
