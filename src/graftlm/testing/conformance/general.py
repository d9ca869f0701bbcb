"""The conformance suite of general plugins: callables that register things in every process."""

from __future__ import annotations

import inspect
import threading
from typing import ClassVar

from graftlm.plugins import Role, UnresolvedPath
from graftlm.plugins.registry import value_text
from graftlm.plugins.selection import Selection
from graftlm.testing.elsewhere import Elsewhere
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.suite import Suite


class GeneralPluginConformance(Suite):
    """Subclass it with `subject` naming the callable, as "package:function"."""

    contract = "the extension point graftlm.general_plugins"
    #: The roles that the plugin's manifest declares.
    roles: ClassVar[tuple[str, ...]] = ("frontend", "worker")

    def test_it_is_called_without_arguments(self) -> None:
        """A callable without arguments."""
        try:
            inspect.signature(self.load()).bind()
        except (TypeError, UnresolvedPath) as error:
            self.fail(f"it cannot be called without arguments: {error}")

    def test_it_runs_in_each_of_its_roles(self) -> None:
        """It raises nothing, as the front end or as a child, where what it registers is all or nothing."""
        for role in self.roles:
            try:
                registered_in(self.subject_path(), role)
            except Exception as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                self.fail(f"in role {role} it raises {type(error).__name__}: {error} {notes}")

    def test_every_process_registers_the_same(self) -> None:
        """Parent and children agree on what is registered, or the server does not start."""
        seen = {}
        for seed, role in enumerate(self.roles, start=3):
            other = Elsewhere(hash_seed=seed)
            try:
                seen[role] = other.call(
                    "graftlm.testing.conformance.general:registered_in", self.subject_path(), role
                )
            finally:
                other.close()
        first = next(iter(seen))
        for role, found in seen.items():
            self.require(found == seen[first], f"{first} registers {seen[first]}, {role} registers {found}")

    def test_nothing_is_registered_later(self) -> None:
        """Everything is registered when it returns: registries freeze at READY, and late is an error."""
        before = set(threading.enumerate())
        registered_in(self.subject_path(), self.roles[0])
        left = [t.name for t in threading.enumerate() if t not in before and not t.daemon]
        self.require(not left, f"it leaves threads behind that keep the process alive: {', '.join(left)}")


def registered_in(path: str, role: str) -> list[tuple[str, str, str]]:
    """Run the plugin in a host of `role`; return what it registered as (registry, key, value)."""
    fake = FakeDistribution("conformance", {"general_plugins": {"under_test": path}})
    with plugin_host(fake, role=Role(role), selection=Selection(enable_plugin=["under_test"])) as host:
        return sorted(
            (e.facts["registry"], e.facts["key"], value_text(e.facts["value"]))
            for e in host.ledger.of("registered")
            if e.plugin == "conformance:under_test"
        )
