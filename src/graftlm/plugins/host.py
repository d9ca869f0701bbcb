"""The plugin host: one process's hold on its plugins; loads them on demand and writes down what happened.

It does not find or choose plugins in a child, and does not know what any of them is for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from graftlm.plugins import agreement, description, general
from graftlm.plugins.blame import calling
from graftlm.plugins.errors import PluginFailed
from graftlm.plugins.known import KnownPlugins
from graftlm.plugins.ledger import Ledger, Outcome
from graftlm.plugins.plan import PlatformChoice, PluginPlan
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.points import ExtensionPoint, Role
from graftlm.plugins.process_host import held_host, hold_host
from graftlm.plugins.registrar import distribution_of
from graftlm.plugins.registry import collect_replays, reinstate, withdraw_plugins
from graftlm.plugins.replay import expect
from graftlm.plugins.report import Report
from graftlm.plugins.resolve import resolve_class_path
from graftlm.plugins.slow_calls import told_when_slow
from graftlm.plugins.spelling import error_text
from graftlm.plugins.transaction import restore_orphans

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery
    from graftlm.plugins.selection import Decision

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PluginHost:
    """All that one process knows of its plugins. Made by `graftlm.platforms.bootstrap`, one per process."""

    def __init__(
        self,
        points: Iterable[ExtensionPoint[Any]],
        *,
        role: Role,
        process: str,
        plan: PluginPlan | None = None,
        discovery: Discovery | None = None,
        decisions: Sequence[Decision] = (),
        settings: Mapping[str, dict[str, Any]] | None = None,
    ) -> None:
        self.points = {point.name: point for point in points}
        self.role = role
        self.roles = {role}
        self.process = process
        self.ledger = Ledger()
        self.frozen = False
        self.discovery = discovery
        self._known = KnownPlugins(decisions, plan.entries if plan else ())
        self.outcomes: dict[str, Outcome] = {}
        self.children: dict[str, Report] = {}
        self.platform: Any = None
        """The Platform object once it is resolved; `graftlm.platforms` keeps it here."""
        self.invariants: list[Callable[[], None]] = []
        """Called after each general plugin, within its transaction, and later by `check_invariants`.

        What one raises is the fault of the plugin that is called.
        """
        self.notes: dict[str, list[str]] = {k: list(v) for k, v in discovery.notes.items()} if discovery else {}
        """Identity of a plugin → what is odd about it, and no error; see `note`."""
        self._settings = dict(plan.settings if plan else settings or {})
        self._given = plan
        self._plan: PluginPlan | None = plan
        self._choice = plan.platform if plan else None
        self._objects: dict[str, Any] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided on every found plugin; empty in a child."""
        return self._known.decisions

    @property
    def known_plugins(self) -> tuple[Plugin, ...]:
        """Every plugin this process heard of, enabled or not."""
        return self._known.all

    @property
    def enabled_plugins(self) -> tuple[Plugin, ...]:
        return self._known.enabled

    def install(self) -> Callable[[], None]:
        """Make this the host of the process; what plugins registered for an earlier one is taken back.

        Returns how to undo it all, for a start that fails.
        """
        before, withdrawn = held_host(), withdraw_plugins()
        hold_host(self)

        def undo() -> None:
            hold_host(before)
            reinstate(withdrawn)

        return undo

    # Asking and loading.

    def plugins(self, point: ExtensionPoint[Any] | str) -> list[Plugin]:
        """Return the enabled plugins of a point, in order, without importing any."""
        return self._known.of(point)

    def available(self, point: ExtensionPoint[Any] | str) -> list[str]:
        """Return the names of a point, sorted; a label that repeats stands as distribution:name."""
        return self._known.available(point)

    def find(self, point: ExtensionPoint[Any] | str, name: str) -> Plugin:
        """Return the enabled plugin of that name; UnknownPlugin says what there is and what was left out."""
        return self._known.find(point, name)

    def enable(self, plugin: Plugin, *, reason: str) -> Plugin:
        """Take in a plugin that the selection left out, because a later flag names it; front end only."""
        return self._known.enable(plugin, reason=reason)

    def load(self, point: ExtensionPoint[T] | str, name: str) -> T:
        """Import and return what the plugin `name` of `point` names; PluginFailed if its code raises."""
        return self.load_plugin(self.find(point, name))  # type: ignore[no-any-return]

    def load_all(self, point: ExtensionPoint[T]) -> list[tuple[Plugin, T]]:
        """Load every enabled plugin of a point, in order; one that was merely installed and fails is left out."""
        loaded = []
        for plugin in self.plugins(point):
            try:
                loaded.append((plugin, self.load_plugin(plugin)))
            except PluginFailed as error:
                if plugin.named or plugin.built_in:
                    raise
                logger.warning("plugin_failed %s", error)
        return loaded

    def load_plugin(self, plugin: Plugin) -> Any:
        """Import the target of `plugin` once and return it."""
        if plugin.identity in self._objects:
            return self._objects[plugin.identity]
        started = time.perf_counter()
        try:
            with calling(plugin, "import"), told_when_slow():
                found = resolve_class_path(plugin.value, what=f"entry point {plugin.name!r}")
                restore_orphans(lambda module: distribution_of(module) == plugin.distribution)
        except Exception as error:
            ms = (time.perf_counter() - started) * 1000
            raise self.failed(plugin, phase=f"import of {plugin.value}", cause=error, ms=ms) from error
        ms = (time.perf_counter() - started) * 1000
        self._objects[plugin.identity] = found
        self.active(plugin, ms=ms)
        self.ledger.record("loaded", plugin=plugin.label, point=plugin.point, value=plugin.value, ms=round(ms, 2))
        return found

    def active(self, plugin: Plugin, *, reason: str = "", ms: float = 0.0) -> None:
        """Note that a plugin did its work in this process."""
        held = self.outcomes.setdefault(plugin.identity, Outcome("active"))
        held.state, held.reason, held.ms = "active", reason or held.reason, held.ms + ms

    @staticmethod
    def idle(reason: str, *, ms: float = 0.0) -> Outcome:
        """What became of a plugin that was looked at and not needed."""
        return Outcome("idle", reason, ms)

    def failed(
        self, plugin: Plugin, *, phase: str, cause: BaseException, ms: float = 0.0, cure: str = ""
    ) -> PluginFailed:
        """Note that a plugin failed, and return the error to raise or to log."""
        cure = cure or f"update or uninstall {plugin.distribution}, or leave it out " + (
            "of the flag that names it" if plugin.named else f"with --disable-plugin {plugin.left_out_by}"
        )
        error = PluginFailed(
            plugin.description, point=plugin.point, process=self.process, phase=phase, cause=cause, cure=cure
        )
        self.outcomes[plugin.identity] = Outcome("failed", f"{phase}: {error_text(cause)}", ms)
        self.ledger.record("failed", plugin=plugin.label, point=plugin.point, phase=phase, error=error_text(cause))
        return error

    def note(self, plugin: Plugin, text: str) -> bool:
        """Keep what is odd about a plugin, and no error, for `describe`; False when it was known already."""
        held = self.notes.setdefault(plugin.identity, [])
        if text in held:
            return False
        held.append(text)
        self.ledger.record("noted", plugin=plugin.label, point=plugin.point, note=text)
        return True

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a distribution, or of the distribution of the plugin of that name or label."""
        for plugin in self._known.enabled:
            if name == plugin.distribution or plugin.answers_to(name):
                return dict(self._settings.get(plugin.distribution, {}))
        return {}

    # Running.

    def run_general_plugins(self) -> None:
        """Run each general plugin of this process's roles that has not run yet, each as a transaction."""
        general.run_general_plugins(self)
        if self._given is not None:
            expect(self._given.replays)

    def take_role(self, role: Role) -> None:
        """Add a role to a process that does the work of several, and run the general plugins it brings."""
        self.roles.add(role)
        self.ledger.record("role_taken", role=role)
        self.run_general_plugins()

    # The plan.

    def choose_platform(self, choice: PlatformChoice) -> None:
        """Put the decided platform into the plan; front end only."""
        self._choice, self._plan = choice, None

    @property
    def platform_choice(self) -> PlatformChoice | None:
        return self._choice

    @property
    def plan(self) -> PluginPlan:
        """The plan as it stands: what a child got, or what the front end has decided so far."""
        return self.make_plan()

    def make_plan(self, *, for_child: bool = False) -> PluginPlan:
        """Return the plan. `for_child` refuses, with NotReplayable, what a hook registered and no child can repeat.

        What the program itself registered may be meant for this process only: that is a warning.
        """
        if self._given is not None:
            return self._given
        replays, refused = collect_replays()
        for error in refused if for_child else ():
            if error.by_hook:
                raise error
            logger.warning("registration_not_replayed %s", error)
        if self._plan is None or self._plan.replays != tuple(replays):
            from graftlm.plugins.fingerprint import distribution_facts

            self._plan = PluginPlan(
                entries=self._known.enabled,
                distributions=self._plan.distributions if self._plan else distribution_facts(self._known.enabled),
                platform=self._choice,
                settings=self._settings,
                replays=tuple(replays),
            )
        return self._plan

    def freeze(self) -> None:
        """READY: from now on plugins may only be imported, and registries refuse what is new."""
        self.frozen = True
        self.ledger.record("ready")

    # Agreement and report.

    def ledger_bytes(self) -> bytes:
        """Return this process's report for READY: facts to compare and the ledger."""
        return msgspec.msgpack.encode(agreement.report(self))

    def add_child_ledger(self, data: bytes) -> Report:
        """Keep a child's report for `describe` and the trace."""
        found = msgspec.msgpack.decode(data, type=Report)
        self.children[found.process] = found
        return found

    def check_child(self, data: bytes) -> None:
        """Keep a child's report and compare it; PlanDiffers prints each difference."""
        agreement.check(self, self.add_child_ledger(data))

    def events(self) -> list[dict[str, Any]]:
        """Return the events of this process and of all reported children, in the order of time."""
        return agreement.merged_events(self)

    def describe(self) -> dict[str, Any]:
        """Return what GET /plugins answers."""
        return description.describe(self)
