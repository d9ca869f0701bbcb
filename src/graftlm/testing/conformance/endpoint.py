"""The conformance suite of endpoint plugins, over a scripted engine and without a port."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Mount, Route

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.frontend.http.endpoint_routes import routes_of
from graftlm.plugins.host import PluginHost
from graftlm.plugins.spelling import kind_of
from graftlm.testing.conformance.front_end import FrontEndSuite
from graftlm.testing.engine import ScriptedEngineClient
from graftlm.testing.suite import NotDeclared
from graftlm.testing.traces import watched

_PREFIX = "/plugins/conformance"


class EndpointConformance(FrontEndSuite):
    """Subclass it with `subject` naming the factory that the entry point names."""

    contract = "graftlm.contracts.endpoint.EndpointPlugin"
    point = ENDPOINT_PLUGINS

    def test_the_factory_makes_an_endpoint_plugin(self) -> None:
        """A callable without arguments that returns a new EndpointPlugin each time."""
        factory = self.load()
        self.require(callable(factory), f"it is {factory!r}")
        try:
            with self.host() as host, self.calling(host, "EndpointPlugin"):
                first, second = factory(), factory()
        except Exception as error:
            self.fail(f"called without arguments, it raises {type(error).__name__}: {error}")
        self.require(isinstance(first, EndpointPlugin), f"it returns {kind_of(first)}")
        self.require(first is not second, "it returns the same object twice: two apps would share their state")
        self.require(inspect.iscoroutinefunction(first.init_state), "its init_state is not `async def`")

    def test_it_only_adds_routes(self) -> None:
        """It has at least one route, below its own prefix or in place of the server's, and mounts no app."""
        with self.host() as host:
            routes = [*self._routes(host), *self._routes(host, "attach_core_routes")]
        self.require(bool(routes), "neither attach_router nor attach_core_routes adds a route")
        for route in routes:
            path = str(getattr(route, "path", ""))
            plain = getattr(route, "original_route", route)
            self.require(not isinstance(plain, Mount), f"it mounts an application at {path!r}")
            self.require(path.startswith("/"), f"the route {path!r} does not begin with a slash")
            self.require(".." not in path, f"the route {path!r} climbs out of its prefix")

    def test_every_app_gets_the_same_routes(self) -> None:
        """Attaching again, for another app, adds the same routes: no state in the module."""
        with self.host() as host:
            for hook in ("attach_router", "attach_core_routes"):
                first, second = ([_signature(r) for r in self._routes(host, hook)] for _ in range(2))
                self.require(first == second, f"first {hook} adds {first}, then {second}")

    def test_init_state_takes_a_ready_engine(self) -> None:
        """`init_state(engine, settings)` is awaited once, when the engine is ready and nothing may register."""
        with self._running():
            pass

    def test_plain_routes_answer(self) -> None:
        """A GET route without parameters answers, and with no server error."""
        with self._running() as (app, router, runner):
            plain = _plain_paths(app, router)
            if not plain:
                raise NotDeclared("it has no GET route without parameters")
            for path in plain:
                status, error = runner.run(_get(app, path))
                self.require(not error, f"GET {path} raises {error}")
                self.require(status < 500, f"GET {path} answers {status}")

    def test_it_leaves_nothing_behind(self) -> None:
        """Starting and answering leave no temporary file: a server may run for months."""
        with watched() as traces, self._running() as (app, router, runner):
            for path in _plain_paths(app, router):
                runner.run(_get(app, path))
        self.require(not traces.left, f"it leaves {', '.join(traces.left)} in the temporary folder")

    def _routes(self, host: PluginHost, hook: str = "attach_router") -> list[BaseRoute]:
        router = APIRouter()
        try:
            with self.calling(host, f"EndpointPlugin.{hook}"):
                getattr(self.load()(), hook)(router)
        except Exception as error:
            self.fail(f"{hook} raises {type(error).__name__}: {error}")
        return routes_of(router.routes)

    @contextmanager
    def _running(self) -> Iterator[tuple[FastAPI, APIRouter, asyncio.Runner]]:
        """An app with the plugin attached, its state initialized, and the server READY."""
        with self.host() as host, asyncio.Runner() as runner:
            router, app = APIRouter(), FastAPI()
            with self.calling(host, "EndpointPlugin.attach_router"):
                plugin = self.load()()
                plugin.attach_router(router)
            app.include_router(router, prefix=_PREFIX)
            host.frozen = True
            try:
                with self.calling(host, "EndpointPlugin.init_state"):
                    runner.run(plugin.init_state(ScriptedEngineClient(), host.settings(self.plugin)))
            except Exception as error:
                self.fail(f"init_state raises {type(error).__name__}: {error}")
            yield app, router, runner


def _plain_paths(app: FastAPI, router: APIRouter) -> list[str]:
    """Return the GET routes without parameters: the router's own, and those of routers inside it."""
    own = [
        _PREFIX + route.path
        for route in router.routes
        if isinstance(route, Route) and "GET" in (route.methods or ())
    ]
    described = [path for path, methods in app.openapi().get("paths", {}).items() if "get" in methods]
    return [path for path in dict.fromkeys([*own, *described]) if "{" not in path]


def _signature(route: BaseRoute) -> tuple[str, tuple[str, ...]]:
    return str(getattr(route, "path", "")), tuple(sorted(getattr(route, "methods", None) or ()))


async def _get(app: FastAPI, path: str) -> tuple[int, str]:
    """GET `path` as a server would ask it; returns the status, and the exception if one leaves the app."""
    status = 500
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"test")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    try:
        await asyncio.wait_for(app(scope, receive, send), timeout=30)
    except Exception as error:
        return status, f"{type(error).__name__}: {error}"
    return status, ""
