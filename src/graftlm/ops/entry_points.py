"""What installed plugins provide at an extension point; nothing, in a process without a plugin host.

It does not know what the objects are for.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from graftlm.contracts.points import CUSTOM_OPS
from graftlm.ops.replaceable import is_ours, spellings
from graftlm.plugins import ExtensionPoint, Plugin, PluginFailed, current_host, find_host
from graftlm.plugins.spelling import nearest

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


def note_unmatched_replacements() -> None:
    """Note and log, once, each replacement of a class that its loaded module does not have, or has by another path.

    The engine's own classes are looked up before a process is started; imports nothing.
    """
    host = find_host()
    for plugin in host.plugins(CUSTOM_OPS) if host is not None else ():
        problem = "" if is_ours(plugin.name) else _mismatch(plugin.name)
        if host is not None and problem and host.note(plugin, problem):
            logger.warning("op_plugin_unbound plugin=%s point=%s: %s", plugin.label, CUSTOM_OPS.name, problem)


def _mismatch(path: str) -> str:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is None:
        return ""
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    if not _is_layer(found):
        layers = [f"{module}.{key}" for key, value in vars(loaded).items() if _is_layer(value)]
        cure = nearest(path.replace(":", "."), layers) or f"it has {', '.join(layers) or 'none'}"
        return f"{path!r} is no layer class of the module {module}, so it replaces nothing; {cure}"
    if path not in spellings(found.__module__, found.__qualname__):
        return f"{path!r} replaces nothing: name the class as {f'{found.__module__}.{found.__qualname__}'!r}"
    return ""


def _is_layer(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "register_oot")
