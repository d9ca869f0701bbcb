"""The ledger: what one process really did with its plugins, in order; does not know what an event means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from graftlm.plugins.resolve import path_of
from graftlm.plugins.spelling import encodable


class LedgerEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that happened; `at` is the wall clock in seconds, `count` grows with `Ledger.record_counted`."""

    at: float
    event: str
    plugin: str | None = None
    facts: dict[str, Any] = {}
    count: int = 1


class Outcome(msgspec.Struct):
    """What became of one plugin: "active", "idle" or "failed"; `ms` is what importing and running it took."""

    state: str
    reason: str = ""
    ms: float = 0.0


def plain(value: Any) -> Any:
    """Reduce a fact to what any process can read: classes become their paths, the unknown its repr."""
    match value:
        case str():
            return encodable(value)
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
        case None | bool() | int() | float():
            return value
        case dict():
            return {str(plain(k)): plain(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(v) for v in value]
        case msgspec.Struct():
            return plain(msgspec.structs.asdict(value))
        case type():
            return path_of(value) or value.__qualname__
    return path_of(value) or repr(value)


class Ledger:
    """The events of one process. Recording is cheap and never fails; readers get them in order."""

    def __init__(self) -> None:
        self.events: list[LedgerEvent] = []
        self.sink: Callable[[LedgerEvent], None] | None = None
        """Told of every new event at once; None costs nothing."""

    def record(self, event: str, *, plugin: str | None = None, **facts: Any) -> LedgerEvent:
        """Append one event."""
        entry = LedgerEvent(at=time.time(), event=event, plugin=plugin, facts=plain(facts))
        self.events.append(entry)
        if self.sink is not None:
            self.sink(entry)
        return entry

    def record_counted(self, event: str, *, plugin: str | None = None, **facts: Any) -> LedgerEvent:
        """Append one event, or count it when the same event with the same facts is there already."""
        wanted = plain(facts)
        for entry in self.events:
            if entry.event == event and entry.plugin == plugin and entry.facts == wanted:
                entry.count += 1
                return entry
        return self.record(event, plugin=plugin, **facts)

    def of(self, event: str, **facts: Any) -> list[LedgerEvent]:
        """Return the events of that name whose facts include `facts`."""
        wanted = plain(facts)
        return [e for e in self.events if e.event == event and wanted.items() <= e.facts.items()]

    def count(self, event: str, **facts: Any) -> int:
        """Tell how often that happened."""
        return sum(e.count for e in self.of(event, **facts))

    def extend(self, events: Iterable[LedgerEvent]) -> None:
        self.events.extend(events)
