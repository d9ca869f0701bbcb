"""Implementations of the model floor's extension points: the engine's own and those that plugins brought.

It does not know what an implementation does. Without a plugin host, in a bare script, only the engine's own exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from graftlm.plugins.current import find_host
from graftlm.plugins.points import ExtensionPoint
from graftlm.plugins.resolve import resolve_class_path
from graftlm.plugins.slow_calls import calling_at_start


def provided_names(point: ExtensionPoint[Any], built_in: Mapping[str, str]) -> list[str]:
    """Name all implementations: the engine's own in their order, then those of plugins."""
    host = find_host()
    provided = host.available(point) if host is not None else []
    off = disabled_built_ins(point)
    return [*(n for n in built_in if n not in off), *(n for n in provided if n not in built_in)]


def disabled_built_ins(point: ExtensionPoint[Any]) -> set[str]:
    """Name the engine's own implementations that the user has left out by name."""
    host = find_host()
    if host is None:
        return set()
    own = {plugin.name for plugin in host.known_plugins if plugin.point == point.name and plugin.built_in}
    return own - set(host.available(point))


def calling_extension(point: ExtensionPoint[Any], name: str, hook: str) -> AbstractContextManager[None]:
    """Name the plugin that provides `name` in any exception of the block, and while the block takes long.

    The engine's own need no naming.
    """
    host = find_host()
    if host is None or name not in host.available(point):
        return nullcontext()
    return calling_at_start(host.find(point, name), hook)


def load_extension(point: ExtensionPoint[Any], name: str, built_in: Mapping[str, str]) -> Any:
    """Import one implementation; a plugin that replaces one of the engine's own comes first."""
    host = find_host()
    if host is not None and name in host.available(point):
        return host.load(point, name)
    return resolve_class_path(built_in[name], what=point.name)
