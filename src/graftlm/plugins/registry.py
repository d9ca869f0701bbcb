"""A registry: keys to values, each with its owner; does not know what the values are for.

One rule for all: the same value again is no change, another value is an error unless `replace=True`, and after
READY a registration is an error. What a plugin registers is undone when it fails (`plugins/transaction.py`).
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar, cast

from graftlm.plugins.blame import current_call
from graftlm.plugins.entry import Entry, key_text, same_value, value_text
from graftlm.plugins.errors import DuplicateRegistration, LateRegistration, NotReplayable, UnknownKey
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import held_host, record
from graftlm.plugins.registrar import Registrar, find_registrar
from graftlm.plugins.replay import Replay, as_replay, expect, expected
from graftlm.plugins.resolve import resolve_class_path
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.plugins.transaction import Step, current_transaction, keep_orphan

__all__ = [
    "Registry",
    "collect_replays",
    "key_text",
    "reinstate",
    "value_text",
    "withdraw_plugins",
]

T = TypeVar("T")

_registries: weakref.WeakSet[Registry[Any]] = weakref.WeakSet()


class Registry(Generic[T]):
    """Keys to values of type T, or to "module:attr" strings that are imported when the value is asked for.

    `name` is the registry's name in the ledger (an extension point's where there is one), `kind` what errors call
    an entry. Keys are strings or classes.
    """

    def __init__(self, name: str, kind: str = "model") -> None:
        self.name = name
        self.kind = kind
        self._entries: dict[Any, Entry] = {}
        self._pending: list[Replay] = []
        self._seen: list[Replay] = []
        _registries.add(self)

    def register(self, key: Any, value: T | str, *, replace: bool = False) -> None:
        """Bind `key` to `value` (or a lazy "module:attr"); see the module for the rules."""
        self._apply_replays()
        registrar = find_registrar(value)
        held = self._entries.get(key)
        if held is not None and same_value(held.value, value):
            return
        if registrar.in_tree and held is not None and held.via == "replay":
            held.previous = Entry(key, value, registrar.owner, "engine")
            return
        if self._frozen() and not registrar.in_tree:
            raise LateRegistration(self.kind, key_text(key), owner=registrar.owner)
        if held is not None and not (replace or _declared(registrar, key)):
            raise DuplicateRegistration(self.kind, key_text(key), holder=held.owner, claimant=registrar.owner)
        entry = Entry(key, value, registrar.owner, *self._way(registrar))
        # While its own module is imported, a class is not yet in it: collect_replays looks later.
        if entry.via == "hook" and entry.module is None and self._as_replay(entry) is None:
            raise self._not_replayable(entry)
        self._put(entry)

    def get(self, key: Any) -> T:
        """Return the value of `key`, importing it if it is lazy; UnknownKey names the nearest keys."""
        entry = self._entry(key)
        if not isinstance(entry.value, str):
            return cast(T, entry.value)
        if entry.resolved is None:
            with calling_at_start(entry.plugin or entry.owner, f"import {entry.value}"):
                entry.resolved = resolve_class_path(entry.value, what=f"{self.kind} {key_text(key)!r}")
        return cast(T, entry.resolved)

    def peek(self, key: Any) -> T | str:
        """Return the value of `key` as it was registered: a lazy one stays a string."""
        return cast("T | str", self._entry(key).value)

    def names(self) -> list[str]:
        """Return all keys, sorted; a class stands as its path."""
        return sorted(key_text(key) for key in self.keys())

    def keys(self) -> list[Any]:
        """Return all keys in the order of registration."""
        self._apply_replays()
        return list(self._entries)

    def owner(self, key: Any) -> str:
        """Return the distribution that registered `key` ("program" for a script's own)."""
        return self._entry(key).owner

    def __contains__(self, key: Any) -> bool:
        self._apply_replays()
        return key in self._entries

    def __len__(self) -> int:
        return len(self.keys())

    # How an entry comes and goes.

    def _entry(self, key: Any) -> Entry:
        self._apply_replays()
        if key not in self._entries:
            raise UnknownKey(self.kind, key_text(key), known=self.names())
        return self._entries[key]

    def _as_replay(self, entry: Entry) -> Replay | None:
        return as_replay(self.name, entry.key, entry.value, owner=entry.owner, plugin=entry.plugin)

    def _not_replayable(self, entry: Entry) -> NotReplayable:
        owner = "this program" if entry.via == "program" else entry.owner
        by_hook = entry.via == "hook"
        return NotReplayable(self.kind, key_text(entry.key), value=repr(entry.value), owner=owner, by_hook=by_hook)

    def _frozen(self) -> bool:
        host = held_host()
        return host is not None and host.frozen

    @staticmethod
    def _way(registrar: Registrar) -> tuple[str, str | None, str | None]:
        if registrar.in_tree:
            return "engine", None, registrar.module
        if registrar.call is None:
            return "program", None, registrar.module
        via = "general" if current_transaction() is not None else "hook" if registrar.call.replay else "import"
        return via, registrar.call.label, registrar.module

    def _put(self, entry: Entry) -> None:
        entry.previous = previous = self._entries.get(entry.key)
        self._entries[entry.key] = entry
        facts = {
            "registry": self.name, "key": key_text(entry.key), "value": value_text(entry.value),
            "owner": entry.owner, "via": entry.via,
        }  # fmt: skip
        if previous is not None:
            facts["replaced"] = previous.owner
        step = self._step(entry, facts)
        opened = current_transaction()
        if entry.via == "general" and opened is not None:
            opened.steps.append(step)
        elif entry.via != "engine":  # which only tells when a module of ours happened to be imported
            record("registered", plugin=entry.plugin, **facts)

    def _step(self, entry: Entry, facts: dict[str, Any]) -> Step:
        return Step(
            undo=lambda: self._undo(entry),
            redo=lambda: self._restore(entry),
            module=entry.module,
            facts=facts,
        )

    def _restore(self, entry: Entry) -> None:
        """Put an entry back that was undone or withdrawn, on behalf of whoever runs now."""
        held, call = self._entries.get(entry.key), current_call()
        if held is not None and same_value(held.value, entry.value):
            return
        if held is not None and held.via != "engine":
            raise DuplicateRegistration(self.kind, key_text(entry.key), holder=held.owner, claimant=entry.owner)
        via = "general" if current_transaction() is not None else "import"
        plugin = call.label if call is not None else entry.plugin
        self._put(entry.again(via=via, plugin=plugin))

    def _undo(self, entry: Entry) -> None:
        if self._entries.get(entry.key) is entry:
            if entry.previous is None:
                del self._entries[entry.key]
            else:
                self._entries[entry.key] = entry.previous

    def _apply_replays(self) -> None:
        if self._seen is not expected():
            self._seen = expected()
            self._pending = [r for r in self._seen if r.registry == self.name]
        for replay in [*self._pending]:
            key = replay.find_key()
            if key is None:
                continue
            self._pending.remove(replay)
            held = self._entries.get(key)
            if held is None or not same_value(held.value, replay.value):
                self._put(Entry(key, replay.value, replay.owner, "replay", replay.plugin))

    def _withdraw(self) -> list[Entry]:
        """Take back every entry of a plugin; what its modules registered while imported is kept as orphans."""
        withdrawn = [e for e in self._entries.values() if e.plugin is not None]
        for entry in withdrawn:
            below = entry.below_plugins()
            if below is None:
                del self._entries[entry.key]
            else:
                self._entries[entry.key] = below
            if entry.module is not None and entry.via != "replay":
                keep_orphan(self._step(entry, {}))
        return withdrawn


def _declared(registrar: Registrar, key: Any) -> bool:
    plugin = registrar.call.plugin if registrar.call is not None else None
    return isinstance(plugin, Plugin) and key_text(key) in plugin.replaces


def collect_replays() -> tuple[list[Replay], list[NotReplayable]]:
    """Return what children must repeat, in the order in which it was registered, and what they cannot."""
    found = [(e, r) for r in _registries for e in r._entries.values() if e.via in ("hook", "program")]
    replays: list[Replay] = []
    refused: list[NotReplayable] = []
    for entry, registry in sorted(found, key=lambda item: item[0].sequence):
        replay = registry._as_replay(entry)
        if replay is not None:
            replays.append(replay)
        else:
            refused.append(registry._not_replayable(entry))
    return replays, refused


def withdraw_plugins() -> list[tuple[Registry[Any], Entry]]:
    """Take back what plugins registered in this process, and return it for `reinstate`."""
    expect([])
    return [(registry, entry) for registry in _registries for entry in registry._withdraw()]


def reinstate(withdrawn: list[tuple[Registry[Any], Entry]]) -> None:
    """Put back what `withdraw_plugins` took, in place of what plugins registered since."""
    withdraw_plugins()
    for registry, entry in withdrawn:
        registry._entries[entry.key] = entry
