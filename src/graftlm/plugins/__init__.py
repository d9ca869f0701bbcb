"""Finds, chooses, orders, loads, attributes and traces plugins; knows nothing of language models.

Importing this package imports no plugin and reads no metadata.
"""

from __future__ import annotations

from typing import Any

from graftlm.plugins.blame import calling, current_call, plugin_logger
from graftlm.plugins.current import current_host, find_host, record, record_counted
from graftlm.plugins.errors import (
    AmbiguousPlugin,
    DuplicatePlugin,
    DuplicateRegistration,
    InvalidSetting,
    LateRegistration,
    NoPluginHost,
    NotReplayable,
    PlanDiffers,
    PluginCycle,
    PluginError,
    PluginFailed,
    PluginRefused,
    RegistryError,
    SelectionConflict,
    UnknownKey,
    UnknownPlugin,
    UnresolvedPath,
)
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import ALL_ROLES, API_VERSION, ExtensionPoint, Role
from graftlm.plugins.registry import Registry
from graftlm.plugins.resolve import resolve_class_path


def settings(name: str | None = None) -> dict[str, Any]:
    """Return the settings of the plugin that runs now, or of the plugin or distribution called `name`."""
    call = current_call()
    if name is None and call is None:
        raise PluginError(
            "settings() without a name works only while plugin code is called; pass the plugin's name"
        )
    return current_host().settings(name or (call.label if call is not None else ""))


__all__ = [
    "ALL_ROLES",
    "API_VERSION",
    "AmbiguousPlugin",
    "DuplicatePlugin",
    "DuplicateRegistration",
    "ExtensionPoint",
    "InvalidSetting",
    "LateRegistration",
    "NoPluginHost",
    "NotReplayable",
    "PlanDiffers",
    "Plugin",
    "PluginCycle",
    "PluginError",
    "PluginFailed",
    "PluginRefused",
    "Registry",
    "RegistryError",
    "Role",
    "SelectionConflict",
    "UnknownKey",
    "UnknownPlugin",
    "UnresolvedPath",
    "calling",
    "current_host",
    "find_host",
    "plugin_logger",
    "record",
    "record_counted",
    "resolve_class_path",
    "settings",
]
