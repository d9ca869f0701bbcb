"""Times calls into plugin code while serving, where somebody asked for it; nothing is timed otherwise.

A timed call costs its clock and a Python frame more, so whoever wraps one asks the configuration first. It does not
know which objects there are to wrap, and changes no answer.
"""

from __future__ import annotations

import collections
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

from graftlm.plugins.blame import current_call
from graftlm.plugins.plugin import BUILT_IN_PACKAGES, Plugin
from graftlm.plugins.process_host import held_host, record

CallT = TypeVar("CallT", bound=Callable[..., Any])

#: The event that `record_call_times` writes into the ledger, one for each timer.
PLUGIN_CALLED = "plugin_called"
#: The event of what cannot be timed, with the reason.
PLUGIN_NOT_TIMED = "plugin_not_timed"

#: Points that general plugins register for; what others need is named by a platform.
_REGISTERED = frozenset(("models", "custom_ops", "op_implementations", "quantization_methods"))
#: So many of a timer's last calls are kept for its median.
_KEPT = 8192
_CLOCK_CALLS = 1000


class CallTimer:
    """The calls of one hook of one plugin in this process; one thread adds at a time."""

    __slots__ = ("calls", "hook", "kind", "label", "recent", "total_ns")

    def __init__(self, label: str, *, kind: str, hook: str) -> None:
        self.label = label
        self.kind = kind
        self.hook = hook
        self.reset()

    def reset(self) -> None:
        self.calls = 0
        self.total_ns = 0
        self.recent: collections.deque[int] = collections.deque(maxlen=_KEPT)

    def add(self, nanoseconds: int) -> None:
        self.calls += 1
        self.total_ns += nanoseconds
        self.recent.append(nanoseconds)

    def wrap(self, function: CallT) -> CallT:
        """Return `function`, timed; what it raises passes, and counts."""
        clock, add = time.perf_counter_ns, self.add

        @functools.wraps(function, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = clock()
            try:
                return function(*args, **kwargs)
            finally:
                add(clock() - begun)

        timed.timer = self  # type: ignore[attr-defined]
        return timed  # type: ignore[return-value]

    def replace(self, owner: Any, name: str) -> None:
        """Let `owner.name` be timed from now on, once; where it cannot be replaced, the ledger says so."""
        found = getattr(owner, name)
        if hasattr(found, "timer"):  # an object that several others hold
            return
        timed: Any = None
        if isinstance(owner, type):  # a subclass must still be given itself
            inner = getattr(found, "__func__", None)
            timed = classmethod(self.wrap(inner)) if inner is not None else staticmethod(self.wrap(found))
        try:
            setattr(owner, name, timed or self.wrap(found))
        except (AttributeError, TypeError) as error:  # __slots__, or a class written in C
            record(PLUGIN_NOT_TIMED, plugin=self.label, kind=self.kind, hook=self.hook, reason=str(error))


_timers: dict[tuple[str, str, str], CallTimer] = {}


def timer_of(plugin: Plugin | str, *, kind: str, hook: str) -> CallTimer:
    """Return the process's only timer of this hook."""
    label = plugin.label if isinstance(plugin, Plugin) else plugin
    return _timers.setdefault((label, kind, hook), CallTimer(label, kind=kind, hook=hook))


def time_listener(listener: CallT, *, hook: str) -> CallT:
    """Return a function that plugin code hands over now, timed as that plugin's; anybody else's as it is."""
    call = current_call()
    plugin = call.known() if call is not None else None
    if plugin is None or plugin.built_in:
        return listener
    return timer_of(plugin, kind="listener", hook=hook).wrap(listener)


def plugin_of_code(code: Any, *, point: str) -> Plugin | None:
    """Return the plugin that brought a class or function; None for the engine's own, torch's and the program's.

    Of several plugins of a distribution it is the one whose target it is, else one of `point`, else one whose
    target lies in the same module, else one that may have registered it or named its path.
    """
    module = str(getattr(code, "__module__", None) or type(code).__module__)
    package = module.partition(".")[0]
    host = held_host()
    if host is None or package in BUILT_IN_PACKAGES:
        return None
    known = [p for p in host.enabled_plugins if p.package == package and not p.built_in]
    path = f"{module}:{getattr(code, '__qualname__', '')}"

    registering = "general_plugins" if point in _REGISTERED else "platform_plugins"

    def fits(plugin: Plugin) -> tuple[bool, ...]:
        same_module = plugin.value.partition(":")[0] == module
        return plugin.value == path, plugin.point == point, same_module, plugin.point == registering

    return max(known, key=fits, default=None)


def record_call_times() -> None:
    """Write what was timed so far into the ledger, and begin anew."""
    called = [timer for timer in _timers.values() if timer.calls]
    clock_ns = _measure_clock() if called else 0.0
    for timer in called:
        record(
            PLUGIN_CALLED,
            plugin=timer.label,
            kind=timer.kind,
            hook=timer.hook,
            calls=timer.calls,
            median_ns=statistics.median(timer.recent),
            mean_ns=timer.total_ns / timer.calls,
            clock_ns=clock_ns,
        )
        timer.reset()


def _measure_clock() -> float:
    """Return what a timer shows for a call that does nothing."""
    timer = CallTimer("", kind="", hook="")
    nothing: Callable[[], None] = timer.wrap(lambda: None)
    for _ in range(_CLOCK_CALLS):
        nothing()
    return statistics.median(timer.recent)
