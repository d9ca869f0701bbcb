"""Attaches endpoint plugins under /plugins/<name>/ and names them when their code fails.

Attaching fails loudly, since these plugins only take part when they are named; serving isolates their failures.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette._utils import get_route_path
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.frontend.http.errors import ClientGone, EndpointFailed, error_response
from graftlm.plugins import Plugin, calling, record
from graftlm.plugins.spelling import kind_of

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.frontend.http.state import ServerState
    from graftlm.plugins.host import PluginHost

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


async def attach_endpoint_plugins(app: FastAPI, state: ServerState, *, llm: AsyncLLM, host: PluginHost) -> None:
    """Load, attach and initialize every enabled endpoint plugin; raises what a plugin raises, with blame."""
    for name in host.available(ENDPOINT_PLUGINS):
        if not _NAME.fullmatch(name):
            raise StartupError(f"endpoint plugin {name!r} cannot be a part of a URL; its author must rename it")
        owner = host.find(ENDPOINT_PLUGINS, name)
        factory: Any = host.load_plugin(owner)
        router = APIRouter()
        with calling(owner, "EndpointPlugin.attach_router"):
            plugin = factory()
            if not isinstance(plugin, EndpointPlugin):
                raise StartupError(
                    f"endpoint plugin {name!r} makes {kind_of(plugin)}; "
                    "its entry point must name a callable that returns a graftlm.contracts.endpoint.EndpointPlugin"
                )
            plugin.attach_router(router)
        if any(isinstance(route, Mount) for route in router.routes):
            raise StartupError(f"endpoint plugin {name!r} mounts an application; it may only add routes")
        with calling(owner, "EndpointPlugin.init_state"):
            await plugin.init_state(llm.client, host.settings(name))
        prefix = f"/plugins/{name}"
        app.include_router(router, prefix=prefix, tags=[f"plugin {name}"])
        app.openapi_schema = None
        state.plugin_prefixes[prefix] = owner
        record("endpoint_attached", plugin=owner, prefix=prefix, routes=[_path(route) for route in router.routes])


def _path(route: Any) -> str:
    return str(getattr(route, "path", route))


class EndpointBlame:
    """Turns an exception of a plugin's route into a 500 that names the plugin, logs it and counts it."""

    def __init__(self, app: ASGIApp, *, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(scope)
        if owner is None:
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        begun = time.monotonic()
        try:
            with calling(owner, "endpoint"):
                await self._app(scope, receive, watched_send)
        except ClientGone:
            raise
        except Exception as error:
            self._state.metrics.count_plugin_error(owner.label)
            logging.getLogger(f"plugin.{owner.name}").exception("endpoint_failed path=%s", scope.get("path"))
            if started or scope["type"] != "http":
                raise
            await error_response(EndpointFailed(owner.description, error))(scope, receive, send)
        finally:
            self._state.metrics.count_plugin_call(owner.label, time.monotonic() - begun)

    def _owner(self, scope: Scope) -> Plugin | None:
        if not self._state.plugin_prefixes or scope["type"] not in ("http", "websocket"):
            return None
        head = "/".join(get_route_path(scope).split("/", 3)[:3])
        return self._state.plugin_prefixes.get(head)
