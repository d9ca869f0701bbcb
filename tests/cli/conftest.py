"""Commands run inside the test process here, so they must leave its signals and its logging alone."""

from __future__ import annotations

import pytest

from graftlm.processes.shutdown import ShutdownRequest


@pytest.fixture(autouse=True)
def quiet_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graftlm.processes.shutdown.install_shutdown_handlers", ShutdownRequest)
