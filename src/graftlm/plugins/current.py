"""Which plugin host this process has, as those above the host ask for it; holds nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from graftlm.plugins.errors import NoPluginHost
from graftlm.plugins.process_host import held_host, hold_host, record, record_counted

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost

__all__ = ["current_host", "find_host", "hold_host", "record", "record_counted"]


def current_host() -> PluginHost:
    """Return the plugin host of this process; an error with the cure when there is none."""
    host = find_host()
    if host is None:
        raise NoPluginHost
    return host


def find_host() -> PluginHost | None:
    """Return the plugin host of this process, or None."""
    return cast("PluginHost | None", held_host())
