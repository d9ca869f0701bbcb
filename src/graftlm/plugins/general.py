"""Runs the general plugins of a process, each as a transaction; does not know what they register."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from graftlm.plugins.blame import calling
from graftlm.plugins.errors import PluginCloses, PluginFailed
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import ProcessHost, record
from graftlm.plugins.slow_calls import told_when_slow
from graftlm.plugins.spelling import counted, kind_of
from graftlm.plugins.surroundings import Surroundings
from graftlm.plugins.transaction import Step, transaction

logger = logging.getLogger(__name__)

POINT = "general_plugins"

#: What each general plugin registered when it ran in this process: it runs once, whatever hosts come and go.
_registered_by: dict[str, list[Step]] = {}

_ends_of_the_lost: list[Callable[[PluginFailed], object]] = []


def end_when_lost(end: Callable[[PluginFailed], object]) -> None:
    """Call `end` when a plugin has taken from this process what even an orderly end needs."""
    _ends_of_the_lost.append(end)


def run_general_plugins(host: ProcessHost) -> None:
    """Run those that have a role of this process and have not run for this host; see `plugin-system` rules."""
    for plugin in host.plugins(POINT):
        if plugin.identity in host.outcomes or not host.roles & set(plugin.roles):
            continue
        try:
            _run(host, plugin)
        except PluginFailed as error:
            is_lost = isinstance(error.__cause__, PluginCloses) and error.__cause__.is_done
            for end in _ends_of_the_lost if is_lost else ():
                end(error)
            if plugin.named or plugin.built_in or is_lost:
                raise
            logger.warning("plugin_failed %s", error)


def _run(host: ProcessHost, plugin: Plugin) -> None:
    started = time.perf_counter()
    again = plugin.identity in _registered_by
    before = Surroundings()
    try:
        with transaction(plugin) as opened, calling(plugin, "general plugin"):
            try:
                function = host.load_plugin(plugin)
                if again:
                    for step in _registered_by[plugin.identity]:
                        step.redo()
                else:
                    _call(function, plugin)
            finally:
                if undone := before.restore():
                    _tell_undone(host, plugin, undone)
                if before.are_closed():
                    raise PluginCloses()
                for check in host.invariants:
                    check()
    except PluginFailed:
        raise
    except Exception as error:
        ms = (time.perf_counter() - started) * 1000
        raise host.failed(plugin, phase="general plugin", cause=error, ms=ms) from error
    if not again:
        _registered_by[plugin.identity] = list(opened.steps)
    ms = (time.perf_counter() - started) * 1000
    count = len(opened.steps)
    reason = f"it ran, and registered {counted(count, 'thing') if count else 'nothing'}"
    host.active(plugin, reason=reason, ms=ms - host.outcomes[plugin.identity].ms)
    record("general_plugin_ran", plugin=plugin, registrations=len(opened.steps), again=again, ms=round(ms, 2))
    for step in opened.steps:
        record("registered", plugin=plugin, **step.facts)


def _tell_undone(host: ProcessHost, plugin: Plugin, undone: list[str]) -> None:
    """Say what a plugin left to everybody else in the process, which was put back."""
    text = f"it left {' and '.join(undone)} to the whole process, which was put back"
    host.note(plugin, text)
    logger.warning("plugin_change_undone %s: %s", plugin.description, text)


def _call(function: Any, plugin: Plugin) -> None:
    if not callable(function):
        raise TypeError(f"{plugin.value} is {kind_of(function)}, and a general plugin must be callable")
    with told_when_slow():
        function()
