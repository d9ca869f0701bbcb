"""Finds the first of some preferred plugins that is installed and enabled, from metadata alone; imports none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graftlm.plugins import find_host
from graftlm.plugins.points import ExtensionPoint


def preferred_class_path(point: ExtensionPoint[Any], names: Sequence[str]) -> str | None:
    """Return the class path of the first of `names` that an enabled plugin of `point` bears, or None."""
    host = find_host()
    named = {plugin.name: plugin.value for plugin in host.plugins(point)} if host is not None else {}
    return next((named[name] for name in names if name in named), None)
