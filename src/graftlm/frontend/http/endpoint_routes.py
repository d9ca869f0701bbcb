"""What routes an endpoint plugin adds, and whether it may: under its own path, and in place of the server's.

It attaches nothing; what a plugin may not is a TypeError or ValueError, raised while the plugin is blamed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterable
from typing import Any

import fastapi.routing
from fastapi import APIRouter
from starlette.routing import BaseRoute, Host, Mount, WebSocketRoute, compile_path
from starlette.types import Scope

from graftlm.plugins import Plugin

#: Below it plugins answer, and it says what they do: no plugin takes it.
_PLUGINS = "plugins"
_WEBSOCKET_LIBRARIES = ("websockets", "wsproto")


@dataclasses.dataclass(frozen=True, slots=True)
class Override:
    """A route of a plugin in place of the server's."""

    plugin: Plugin
    path: str
    methods: frozenset[str]
    target: Any
    pattern: re.Pattern[str]

    def answers(self, scope: Scope, path: str) -> bool:
        """Tell whether this route takes the request of `scope`."""
        return scope.get("method") in self.methods and self.pattern.match(path) is not None

    @property
    def keys(self) -> list[str]:
        return [f"{method} {self.path}" for method in sorted(self.methods)]


def routes_of(routes: Iterable[BaseRoute]) -> list[Any]:
    """Return routes with those of included routers, each with `path`, `methods`, `endpoint`."""
    # Where FastAPI keeps included routers whole it has this function; before that they were flat already.
    flatten = getattr(fastapi.routing, "iter_route_contexts", None)
    return list(flatten(list(routes))) if flatten is not None else list(routes)


def check_own_routes(router: APIRouter) -> list[str]:
    """Return the paths that a plugin adds under its own; refuse mounted applications and impossible WebSockets."""
    found = routes_of(router.routes)
    for route in found:
        plain = getattr(route, "original_route", route)
        if isinstance(plain, Mount | Host):
            raise TypeError(f"it mounts an application at {route.path!r}; it may only add routes")
        if isinstance(plain, WebSocketRoute) and not any(map(importlib.util.find_spec, _WEBSOCKET_LIBRARIES)):
            raise TypeError(
                f"its route {route.path!r} is a WebSocket, and this installation has no library for them; "
                "pip install websockets (a plugin with such routes declares it as a dependency)"
            )
    return [str(route.path) for route in found]


def overrides_of(router: APIRouter, plugin: Plugin, *, core: Iterable[BaseRoute]) -> list[Override]:
    """Return what a plugin adds in place of the routes `core`; each must take what it names and no more."""
    paths = {str(route.path) for route in routes_of(core) if getattr(route, "path", None)}
    found = []
    for route in routes_of(router.routes):
        path = str(route.path)
        if isinstance(getattr(route, "original_route", route), Mount | Host | WebSocketRoute) or not route.methods:
            raise TypeError(f"its core route {path!r} is no plain HTTP route; add such under attach_router")
        first = path.split("/")[1] if path.startswith("/") else path
        if first == _PLUGINS or "{" in first or not first:
            raise ValueError(
                f"its core route {path!r} is not allowed: begin it with a literal part other than /{_PLUGINS}, "
                "where every plugin answers and is told of"
            )
        pattern, _, _ = compile_path(path)
        taken = sorted(p for p in paths if p != path and pattern.match(p))
        if taken:
            raise ValueError(f"its core route {path!r} would take {taken[0]} too; name the paths that it means")
        found.append(Override(plugin, path, frozenset(route.methods), route.endpoint, pattern))
    if not found:
        raise ValueError(
            "its attach_core_routes adds no route, and a flag grants it core routes; leave the flag out"
        )
    return found


def check_taken(new: Iterable[Override], taken: Iterable[Override]) -> None:
    """Refuse a core route that another plugin has taken already."""
    owners = {key: override.plugin for override in taken for key in override.keys}
    for key in (key for override in new for key in override.keys):
        if key in owners:
            raise ValueError(
                f"{key} is taken by plugin {owners[key].description} already; grant it to one of them only"
            )
