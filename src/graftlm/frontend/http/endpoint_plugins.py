"""Attaches endpoint plugins under /plugins/<name>/, and in place of core routes where a flag grants it.

Attaching fails loudly, since these plugins only take part when they are named; serving isolates their failures
(`endpoint_blame.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.frontend.http.endpoint_grants import OVERRIDES_FLAG, read_grants
from graftlm.frontend.http.endpoint_routes import check_own_routes, check_taken, overrides_of
from graftlm.plugins import Plugin, record
from graftlm.plugins.process_host import check_invariants
from graftlm.plugins.resolve import path_of
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.plugins.spelling import kind_of

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.frontend.http.state import ServerState
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


async def attach_endpoint_plugins(app: FastAPI, state: ServerState, *, llm: AsyncLLM, host: PluginHost) -> None:
    """Load, attach and initialize every enabled endpoint plugin.

    Raises PluginFailed for what a plugin raises or may not do, UnknownPlugin for a grant to nobody.
    """
    grants = read_grants(state.server_config, host)
    for name in host.available(ENDPOINT_PLUGINS):
        if not _NAME.fullmatch(name):
            raise StartupError(f"endpoint plugin {name!r} cannot be a part of a URL; its author must rename it")
        owner = host.find(ENDPOINT_PLUGINS, name)
        factory: Any = host.load_plugin(owner)
        router, core_router = APIRouter(), APIRouter()
        with _phase(host, owner, "EndpointPlugin.attach_router"):
            plugin = _make(factory)
            plugin.attach_router(router)
            paths = check_own_routes(router)
        if owner.identity in grants.overrides:
            with _phase(host, owner, "EndpointPlugin.attach_core_routes"):
                plugin.attach_core_routes(core_router)
                overrides = overrides_of(core_router, owner, core=app.router.routes)
                check_taken(overrides, state.overrides)
        else:
            overrides = []
            _tell_of_missing_grant(plugin, owner, name, host)
        with _phase(host, owner, "EndpointPlugin.init_state"):
            await plugin.init_state(llm.client, host.settings(name))
        prefix = f"/plugins/{name}"
        app.include_router(router, prefix=prefix, tags=[f"plugin {name}"])
        state.plugin_prefixes[prefix] = owner
        if owner.identity in grants.no_auth:
            state.open_prefixes.add(prefix)
            _record_grant(owner, "routes_without_key", prefix, "no API key is asked for")
        if overrides:
            state.overrides += overrides
            state.override_routes += _put_first(app, core_router, tag=f"plugin {name}")
            for override in overrides:
                for key in override.keys:
                    _record_grant(owner, "core_routes", key, path_of(override.target) or repr(override.target))
        app.openapi_schema = None
        record("endpoint_attached", plugin=owner, prefix=prefix, routes=paths)


@contextmanager
def _phase(host: PluginHost, owner: Plugin, phase: str) -> Iterator[None]:
    """Make what the block raises the failure of a plugin, with its name and the cure."""
    try:
        with calling_at_start(owner, phase):
            yield
            check_invariants()
    except Exception as error:
        raise host.failed(owner, phase=phase, cause=error) from error


def _make(factory: Any) -> EndpointPlugin:
    if not callable(factory):
        raise TypeError(f"its entry point names {kind_of(factory)}; it must name a callable without arguments")
    plugin = factory()
    if not isinstance(plugin, EndpointPlugin):
        raise TypeError(
            f"it makes {kind_of(plugin)}; its entry point must name a callable that returns a "
            "graftlm.contracts.endpoint.EndpointPlugin"
        )
    return plugin


def _tell_of_missing_grant(plugin: EndpointPlugin, owner: Plugin, name: str, host: PluginHost) -> None:
    if type(plugin).attach_core_routes is EndpointPlugin.attach_core_routes:
        return
    text = f"its core routes are not attached: {OVERRIDES_FLAG} {name} grants them"
    host.note(owner, text)
    logger.warning("endpoint_overrides_not_granted plugin=%s: %s", owner.label, text)


def _put_first(app: FastAPI, router: APIRouter, *, tag: str) -> list[Any]:
    """Include a router before all others, so that its routes win; returns what the application got."""
    routes = app.router.routes
    before = len(routes)
    app.include_router(router, tags=[tag])
    new = routes[before:]
    del routes[before:]
    routes[:0] = new
    return list(new)


def _record_grant(owner: Plugin, registry: str, key: str, value: str) -> None:
    record(
        "registered", plugin=owner, registry=registry, key=key, value=value, owner=owner.distribution, via="flag"
    )
    logger.info("endpoint_grant_used plugin=%s %s=%r", owner.label, registry, key)
