"""What installed plugins provide at an extension point; nothing, in a process without a plugin host.

It does not know what the objects are for.
"""

from __future__ import annotations

import logging
from typing import Any

from graftlm.plugins import ExtensionPoint, Plugin, PluginFailed, current_host, find_host

logger = logging.getLogger(__name__)


def available(point: ExtensionPoint[Any]) -> frozenset[str]:
    """Return the names that enabled plugins provide at `point`, without importing any."""
    host = find_host()
    return frozenset() if host is None else frozenset(host.available(point))


def find(point: ExtensionPoint[Any], name: str) -> Plugin:
    """Return the plugin that provides `name`, one of those that are available."""
    return current_host().find(point, name)


def load(point: ExtensionPoint[Any], name: str) -> Any:
    """Import and return what `name` provides."""
    return current_host().load(point, name)


def load_if_sound(point: ExtensionPoint[Any], name: str) -> Any | None:
    """As `load`, but a plugin that was merely installed and fails is left out, with one warning."""
    host = current_host()
    plugin = host.find(point, name)
    outcome = host.outcomes.get(plugin.identity)
    if outcome is not None and outcome.state == "failed":
        return None
    try:
        return host.load_plugin(plugin)
    except PluginFailed as error:
        if plugin.named or plugin.built_in:
            raise
        logger.warning("plugin_failed %s", error)
        return None
