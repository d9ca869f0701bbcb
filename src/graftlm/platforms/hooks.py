"""The one place that calls platform hooks: each call is counted and bears the plugin's name. Decides nothing."""

from __future__ import annotations

import time
from typing import Any

from graftlm.contracts.platform import Platform
from graftlm.platforms.current import resolve_current_platform
from graftlm.plugins import Role, calling, current_host
from graftlm.plugins.host import PluginHost
from graftlm.plugins.slow_calls import told_when_slow


def call_hook(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call hook `name` of the current platform.

    It is recorded as `hook_called`; an exception gets the plugin's name. What a hook registers in the front end is
    replayed in the other processes.
    """
    host = current_host()
    platform: Platform = resolve_current_platform()
    plugin = platform_label(host)
    hook = getattr(platform, name)
    started = time.perf_counter()
    with calling(plugin, name, replay=host.role is Role.FRONTEND), told_when_slow():
        answer = hook(*args, **kwargs)
    facts = {"answer": answer} if isinstance(answer, str | int) else {}
    ms = round((time.perf_counter() - started) * 1000, 2)
    host.ledger.record("hook_called", plugin=plugin, hook=name, ms=ms, **facts)
    return answer


def hook_counts(host: PluginHost | None = None) -> dict[str, int]:
    """Tell how often each hook was called in this process."""
    counts: dict[str, int] = {}
    for event in (host or current_host()).ledger.of("hook_called"):
        counts[event.facts["hook"]] = counts.get(event.facts["hook"], 0) + event.count
    return counts


def platform_label(host: PluginHost) -> str:
    """Return distribution:name of the plugin that provides the platform."""
    choice = host.platform_choice
    return choice.label if choice is not None else "unknown"
