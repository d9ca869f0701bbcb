"""Brings the plugins of a process to life: decides in the front end, obeys the plan in children."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from graftlm.config import environment
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins import Role
from graftlm.plugins.agreement import check_against_parent, general_registrations
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plan import PluginPlan
from graftlm.plugins.selection import Selection

logger = logging.getLogger(__name__)


class ChildPayload(msgspec.Struct, kw_only=True):
    """What a child gets before anything else."""

    plan: PluginPlan
    role: Role
    process: str
    parent: str = ""
    general: dict[str, list[str]] = {}
    """What the general plugins registered in the parent; the child's must do the same."""


def bootstrap_frontend(
    selection: Selection | None = None,
    *,
    platform: str | None = None,
    allow_fallback: bool = False,
    plugin_config: Sequence[str] = (),
    process: str = "front end",
    locked: str | None = None,
    on_host: Callable[[PluginHost], None] | None = None,
) -> PluginHost:
    """Discover, select, detect the platform, run the general plugins; returns the host of this process.

    Raises PluginError or StartupError, with the cure in the text; nothing is left behind then. `on_host` is given
    the host before the platform is asked for, so that a caller can tell what happened until a start was refused.
    `locked` is the lock file that must hold.
    """
    return _choose(
        selection or Selection(), platform=platform, allow_fallback=allow_fallback, plugin_config=plugin_config,
        process=process, run=True, locked=locked, on_host=on_host,
    )  # fmt: skip


def child_payload(host: PluginHost, *, role: Role | str, process: str) -> bytes:
    """Encode the plan for a child; NotReplayable when what a hook registered cannot be repeated there."""
    return msgspec.msgpack.encode(
        ChildPayload(
            plan=host.make_plan(for_child=True),
            role=Role(role),
            process=process,
            parent=host.process,
            general=general_registrations(host),
        )
    )


def apply_plan_in_child(payload: bytes) -> None:
    """Take the parent's plan: no discovery, no detection; the general plugins of this role run."""
    data = msgspec.msgpack.decode(payload, type=ChildPayload)
    host = PluginHost(ALL_POINTS, role=data.role, process=data.process, plan=data.plan)
    _trace_if_wished(host)
    host.install()
    host.ledger.record("plan_applied", fingerprint=data.plan.fingerprint, plugins=len(data.plan.entries))
    host.run_general_plugins()
    # Now, not with READY: a model that is missing here would first be missed by whoever wants to build it.
    check_against_parent(host, data.general, parent=data.parent)


def choose_by_default() -> PluginHost:
    """Choose plugins and platform for a program that asks for the platform before any bootstrap.

    Only the environment can wish for something: GRAFTLM_PLUGINS, GRAFTLM_DISABLE_PLUGIN and GRAFTLM_PLATFORM.
    """
    from graftlm.config.options import engine_options, read_environment

    wish = read_environment(environment.get, engine_options())
    selection = Selection(
        plugins=wish.get("plugins.plugins"), disable_plugin=wish.get("plugins.disable_plugin", ())
    )
    return _choose(
        selection, platform=wish.get("plugins.platform"), allow_fallback=False, plugin_config=(),
        process="front end", run=False,
    )  # fmt: skip


def _choose(
    selection: Selection,
    *,
    platform: str | None,
    allow_fallback: bool,
    plugin_config: Sequence[str],
    process: str,
    run: bool,
    locked: str | None = None,
    on_host: Callable[[PluginHost], None] | None = None,
) -> PluginHost:
    from graftlm.platforms.detection import decide
    from graftlm.platforms.native_kernels import refuse_unloadable
    from graftlm.plugins.discovery import discover
    from graftlm.plugins.plugin_config import read_settings
    from graftlm.plugins.selection import select

    discovery = discover(ALL_POINTS)
    decisions = select(discovery, selection)
    for decision in decisions:
        if decision.state == "refused":
            logger.warning("plugin_refused plugin=%s: %s", decision.plugin.description, decision.reason)
    decisions = refuse_unloadable(decisions)
    if locked is not None:
        from graftlm.plugins.lock import check_lock

        check_lock(locked, decisions)
    enabled = [d.plugin for d in decisions if d.enabled]
    host = PluginHost(
        ALL_POINTS, role=Role.FRONTEND, process=process, discovery=discovery, decisions=decisions,
        settings=read_settings(plugin_config, discovery.settings, plugins=enabled),
    )  # fmt: skip
    _trace_if_wished(host)
    if on_host is not None:
        on_host(host)
    host.ledger.record(
        "discovered", plugins=len(discovery.plugins), distributions=discovery.searched, ms=round(discovery.ms, 2)
    )
    host.ledger.record("selected", enabled=[p.identity for p in enabled])
    undo = host.install()
    try:
        decide(host, name=platform, allow_fallback=allow_fallback)
        if run:
            host.run_general_plugins()
    except BaseException:
        undo()
        raise
    return host


def _trace_if_wished(host: PluginHost) -> None:
    """Let the ledger be read while it is written, where GRAFTLM_TRACE names a file."""
    path = environment.get("GRAFTLM_TRACE")
    if path is None:
        return
    from graftlm.plugins.live_trace import LiveTrace

    try:
        host.ledger.sink = LiveTrace(path, process=host.process)
    except OSError as error:
        problem = error.strerror or error
        raise StartupError(
            f"GRAFTLM_TRACE={path!r} cannot be written: {problem}; name a file, or unset it"
        ) from error
