"""Endpoint plugins of one's own for a server in a thread: hosts whose plugins are classes of the calling test."""

from __future__ import annotations

import sys
from typing import Any

from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.plugins import Plugin, Role
from graftlm.plugins.host import PluginHost
from graftlm.plugins.selection import Decision


def host_of(**targets: Any) -> PluginHost:
    """Install a host whose enabled endpoint plugins are these classes, by name, each of NAME-dist 1.2."""
    decisions = []
    for name, target in targets.items():
        setattr(sys.modules[__name__], f"target_{name}", target)
        plugin = Plugin(
            point=ENDPOINT_PLUGINS.name, name=name, value=f"{__name__}:target_{name}", distribution=f"{name}-dist",
            version="1.2", opt_in=True, roles=(str(Role.FRONTEND),), named=True,
        )  # fmt: skip
        decisions.append(Decision(plugin=plugin, state="on", reason="named"))
    host = PluginHost([ENDPOINT_PLUGINS], role=Role.FRONTEND, process="front end", decisions=decisions)
    host.install()
    return host
