"""A plugin that hangs: the terminal says whom the start waits for."""

from __future__ import annotations

import logging
import threading

import pytest

from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins import slow_calls
from graftlm.plugins.discovery import discover
from graftlm.plugins.host import PluginHost
from graftlm.plugins.points import Role
from graftlm.plugins.selection import Selection, select

SOURCE = """
def register():
    from graftlm.plugins import slow_calls
    assert slow_calls.told.wait(60)
"""


@pytest.fixture
def told(monkeypatch):
    """Set once somebody is told of a slow plugin, which here takes no time."""
    monkeypatch.setattr(slow_calls, "FIRST_S", 0.01)
    event = threading.Event()
    monkeypatch.setattr(slow_calls, "told", event, raising=False)

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            self.said = record.getMessage()
            event.set()

    listener = Listener()
    slow_calls.logger.addHandler(listener)
    yield listener
    slow_calls.logger.removeHandler(listener)


def test_whom_a_start_waits_for_is_said_while_it_waits(site, told) -> None:
    """Plugin, distribution, version, process, hook and how to go on without it; no thread is left."""
    site.add("slowcoach", {"general_plugins": {"ops": "slowcoach:register"}}, source=SOURCE)
    found = discover(ALL_POINTS)
    host = PluginHost(
        ALL_POINTS, role=Role.FRONTEND, process="front end", discovery=found, decisions=select(found, Selection())
    )
    host.install()
    (plugin,) = host.plugins("general_plugins")
    host.run_general_plugins()

    assert host.outcomes[plugin.identity].state == "active"
    assert told.said.startswith("plugin_slow ops of slowcoach 1.0 takes 0 s so far in process 'front end', ")
    assert "hook general plugin; Ctrl-C ends the start" in told.said
    assert "--disable-plugin slowcoach:ops leaves it out" in told.said
    assert not [t for t in threading.enumerate() if t.name == "graftlm-slow-calls"]
