"""Resolves the platform of this process on first use: from its plan, never by a second detection."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from graftlm.contracts.fixed_platform import Picture, refuse_early_writes
from graftlm.contracts.platform import Platform
from graftlm.contracts.points import PLATFORM_PLUGINS
from graftlm.platforms.errors import PlatformUnresolved
from graftlm.plugins import find_host

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost


def resolve_current_platform() -> Platform:
    """Return the Platform object of this process.

    A program that never chose plugins gets the default choice here; a child before its plan gets an error.
    """
    host = find_host()
    if host is None and is_child():
        raise PlatformUnresolved(moment="in a child process before its plan was applied")
    if host is None:
        from graftlm.platforms.bootstrap import choose_by_default

        host = choose_by_default()
    if host.platform is None:
        from graftlm.platforms.detection import load_platform

        choice = host.platform_choice
        if choice is None:
            raise PlatformUnresolved(moment="while the platform is still being detected")
        keep_platform(host, load_platform(choice.class_path, choice.label))
        for plugin in host.plugins(PLATFORM_PLUGINS):
            if plugin.label == choice.label:
                host.active(plugin)
    found: Platform = host.platform
    return found


def keep_platform(host: PluginHost, platform: Platform) -> None:
    """Make `platform` the decided one of this process, which nobody changes from now on."""
    refuse_early_writes(platform)
    host.platform = platform
    host.invariants.append(Picture(platform).check)


def is_child() -> bool:
    """Tell whether this process was started by another graftlm process, which will send its plan."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("graftlm.processes.")
