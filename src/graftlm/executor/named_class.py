"""Finds a class that a flag names: a plugin's by its entry-point name, any other by its path."""

from __future__ import annotations

from typing import Any

from graftlm.plugins import current_host
from graftlm.plugins.points import ExtensionPoint
from graftlm.plugins.resolve import resolve_class_path


def load_named_class(point: ExtensionPoint[Any], name: str, *, what: str) -> Any:
    """Return what `name` stands for; `what` is the flag to blame."""
    if ":" in name or "." in name:
        return resolve_class_path(name, what=what)
    return current_host().load(point, name)
