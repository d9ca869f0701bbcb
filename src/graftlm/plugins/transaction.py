"""A plugin's registrations as one transaction: all or none; does not know what is registered.

Undoing cannot undo an import: decorators of a module that a failing plugin imported first never run again. So
what such decorators registered is kept as orphans, and given back to the next plugin that uses the module.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from graftlm.plugins.plugin import Plugin
from graftlm.plugins.registrar import distribution_of


@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """One registration: how to undo it and how to do it again; `module` is the one whose import did it."""

    undo: Callable[[], None]
    redo: Callable[[], None]
    module: str | None
    facts: dict[str, Any]


class Transaction:
    """The registrations of one call of one plugin, in order."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.steps: list[Step] = []

    def roll_back(self) -> None:
        """Undo everything, last first."""
        for step in reversed(self.steps):
            step.undo()
        _orphans.extend(step for step in self.steps if step.module is not None)
        self.steps = []


_current: contextvars.ContextVar[Transaction | None] = contextvars.ContextVar("graftlm_transaction", default=None)
_orphans: list[Step] = []


def current_transaction() -> Transaction | None:
    return _current.get()


@contextlib.contextmanager
def transaction(plugin: Plugin) -> Iterator[Transaction]:
    """Undo all registrations of the block when it raises."""
    opened = Transaction(plugin)
    token = _current.set(opened)
    try:
        restore_orphans(lambda module: distribution_of(module) == plugin.distribution)
        yield opened
        uses = modules_used_by(plugin)
        restore_orphans(uses.__contains__)
    except BaseException:
        opened.roll_back()
        raise
    finally:
        _current.reset(token)


def restore_orphans(belongs: Callable[[str], bool]) -> None:
    """Register again what an undone plugin's imports had registered, for modules that `belongs` accepts."""
    global _orphans
    mine = [s for s in _orphans if s.module is not None and belongs(s.module)]
    _orphans = [s for s in _orphans if s not in mine and s.module in sys.modules]
    for step in mine:
        if step.module in sys.modules:
            step.redo()


def keep_orphan(step: Step) -> None:
    _orphans.append(step)


def modules_used_by(plugin: Plugin) -> set[str]:
    """Return the modules that the plugin's package refers to, as far as its loaded modules show it."""
    used: set[str] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != plugin.package or module is None:
            continue
        used.add(name)
        for item in list(vars(module).values()):
            used.add(getattr(item, "__name__", "") if isinstance(item, type(sys)) else "")
            used.add(getattr(item, "__module__", None) or "")
            code = getattr(item, "__code__", None)
            used.update(getattr(code, "co_names", ()))
    return used
