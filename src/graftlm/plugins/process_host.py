"""The place where a process keeps its plugin host, and what the modules below the host may ask of it.

It does not know the host's class, so that blame, registries and reports need not import what imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from graftlm.plugins.plugin import Plugin

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery
    from graftlm.plugins.errors import PluginFailed
    from graftlm.plugins.ledger import Ledger, Outcome
    from graftlm.plugins.plan import PluginPlan
    from graftlm.plugins.points import Role
    from graftlm.plugins.report import Report
    from graftlm.plugins.selection import Decision


class ProcessHost(Protocol):
    """What is below `plugins/host.py` sees of it; each member means what it means there."""

    process: str
    roles: set[Role]
    ledger: Ledger
    frozen: bool
    discovery: Discovery | None
    outcomes: dict[str, Outcome]
    children: dict[str, Report]
    invariants: list[Callable[[], None]]
    notes: dict[str, list[str]]

    @property
    def decisions(self) -> tuple[Decision, ...]: ...
    @property
    def known_plugins(self) -> tuple[Plugin, ...]: ...
    @property
    def enabled_plugins(self) -> tuple[Plugin, ...]: ...
    @property
    def plan(self) -> PluginPlan: ...
    def plugins(self, point: str, /) -> list[Plugin]: ...
    def load_plugin(self, plugin: Plugin, /) -> Any: ...
    def note(self, plugin: Plugin, text: str, /) -> bool: ...
    def active(self, plugin: Plugin, /, *, reason: str = "", ms: float = 0.0) -> None: ...
    def failed(
        self, plugin: Plugin, /, *, phase: str, cause: BaseException, ms: float = 0.0, cure: str = ""
    ) -> PluginFailed: ...


_held: ProcessHost | None = None


def held_host() -> ProcessHost | None:
    """Return the plugin host of this process, or None."""
    return _held


def hold_host(host: ProcessHost | None) -> None:
    """Make `host` this process's; used by the bootstrap only."""
    global _held
    _held = host


def check_invariants() -> None:
    """Raise for what the plugin code that is called now has changed and must not; it is put back."""
    for check in _held.invariants if _held is not None else ():
        check()


def record(event: str, *, plugin: Plugin | str | None = None, **facts: Any) -> None:
    """Write an event into this process's ledger; does nothing when the process has no plugin host."""
    if _held is not None:
        _held.ledger.record(event, plugin=_name(plugin), **facts)


def record_counted(event: str, *, plugin: Plugin | str | None = None, **facts: Any) -> None:
    """As `record`, but an event with equal facts is counted instead of repeated."""
    if _held is not None:
        _held.ledger.record_counted(event, plugin=_name(plugin), **facts)


def _name(plugin: Plugin | str | None) -> str | None:
    return plugin.label if isinstance(plugin, Plugin) else plugin
