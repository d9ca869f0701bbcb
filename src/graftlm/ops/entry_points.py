"""What installed plugins provide at an extension point; nothing, in a process without a plugin host.

It does not know what the objects are for.
"""

from __future__ import annotations

from typing import Any

from graftlm.plugins.current import find_host
from graftlm.plugins.points import ExtensionPoint


def available(point: ExtensionPoint[Any]) -> frozenset[str]:
    """Return the names that selected plugins provide at `point`, without importing any."""
    host = find_host()
    return frozenset() if host is None else frozenset(host.available(point))


def load(point: ExtensionPoint[Any], name: str) -> Any:
    """Import and return what `name` provides at `point`."""
    host = find_host()
    assert host is not None, "load() follows available()"
    return host.load(point, name)
