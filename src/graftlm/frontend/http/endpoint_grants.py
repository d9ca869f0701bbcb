"""Which endpoint plugins may do more than answer under their own paths behind the key: what the flags grant.

It does not know the routes, and needs no HTTP library: a wrong name is told before an engine is started.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.plugins import AmbiguousPlugin, Plugin, UnknownPlugin

if TYPE_CHECKING:
    from graftlm.config.server_config import ServerConfig
    from graftlm.plugins.host import PluginHost

OVERRIDES_FLAG, NO_AUTH_FLAG = "--endpoint-overrides", "--endpoint-no-auth"


@dataclasses.dataclass(frozen=True, slots=True)
class EndpointGrants:
    """Identities of the plugins that may answer routes of the server, and of those that need no API key."""

    overrides: frozenset[str] = frozenset()
    no_auth: frozenset[str] = frozenset()


def read_grants(server_config: ServerConfig, host: PluginHost) -> EndpointGrants:
    """Return what the flags grant; UnknownPlugin or AmbiguousPlugin for a name that means no enabled plugin."""
    return EndpointGrants(
        frozenset(_named(server_config.endpoint_overrides, host, OVERRIDES_FLAG)),
        frozenset(_named(server_config.endpoint_no_auth, host, NO_AUTH_FLAG)),
    )


def _named(names: Sequence[str], host: PluginHost, flag: str) -> list[str]:
    return [_find(name.strip(), host, flag).identity for name in names]


def _find(name: str, host: PluginHost, flag: str) -> Plugin:
    found = [plugin for plugin in host.plugins(ENDPOINT_PLUGINS) if plugin.answers_to(name)]
    if len(found) > 1:
        raise AmbiguousPlugin(name, where=flag, candidates=[plugin.label for plugin in found])
    if found:
        return found[0]
    left_out = [d for d in host.decisions if d.plugin.point == ENDPOINT_PLUGINS.name and d.plugin.answers_to(name)]
    hint = f"{left_out[0].plugin.label} is {left_out[0].state}: {left_out[0].reason}." if left_out else ""
    raise UnknownPlugin(name, where=flag, known=host.available(ENDPOINT_PLUGINS), hint=hint)
