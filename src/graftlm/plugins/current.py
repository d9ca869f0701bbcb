"""Which plugin host this process has; holds it, and does nothing else with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.plugins.errors import NoPluginHost
from graftlm.plugins.plugin import Plugin

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost

_host: PluginHost | None = None


def current_host() -> PluginHost:
    """Return the plugin host of this process; an error with the cure when there is none."""
    if _host is None:
        raise NoPluginHost
    return _host


def find_host() -> PluginHost | None:
    """Return the plugin host of this process, or None."""
    return _host


def hold_host(host: PluginHost | None) -> None:
    """Make `host` this process's; used by the bootstrap only."""
    global _host
    _host = host


def record(event: str, *, plugin: Plugin | str | None = None, **facts: Any) -> None:
    """Write an event into this process's ledger; does nothing when the process has no plugin host."""
    if _host is not None:
        _host.ledger.record(event, plugin=_name(plugin), **facts)


def record_counted(event: str, *, plugin: Plugin | str | None = None, **facts: Any) -> None:
    """As `record`, but an event with equal facts is counted instead of repeated."""
    if _host is not None:
        _host.ledger.record_counted(event, plugin=_name(plugin), **facts)


def _name(plugin: Plugin | str | None) -> str | None:
    return plugin.label if isinstance(plugin, Plugin) else plugin
