"""The plugin host that these tests start is theirs alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graftlm.plugins.current import find_host, hold_host


@pytest.fixture(scope="module", autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)
