"""Finds what a flag or a hook names: a plugin by entry-point name or target, anything else by its path.

It does not know what the object is for.
"""

from __future__ import annotations

from typing import Any

from graftlm.plugins.current import current_host, find_host
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import ExtensionPoint
from graftlm.plugins.resolve import resolve_class_path, split_path


def load_named(point: ExtensionPoint[Any], text: str, *, what: str) -> Any:
    """Import and return what `text` stands for; `what` is the flag or hook to blame.

    A class path that is some plugin's target counts as that plugin's use, so that its state and errors name it.
    """
    plugin = plugin_named(point, text)
    if plugin is not None:
        return current_host().load_plugin(plugin)
    if is_path(text) or find_host() is None:
        return resolve_class_path(text, what=what)
    return current_host().load(point, text)


def plugin_named(point: ExtensionPoint[Any], text: str) -> Plugin | None:
    """Return the enabled plugin of `point` that `text` means, by name or by target; imports nothing."""
    host = find_host()
    if host is None:
        return None
    wanted = split_path(text) if is_path(text) else None
    for plugin in host.plugins(point):
        if plugin.name == text or (wanted is not None and split_path(plugin.value) == wanted):
            return plugin
    return None


def is_path(text: str) -> bool:
    """Names have neither colon nor dot; class paths have one of them."""
    return ":" in text or "." in text
