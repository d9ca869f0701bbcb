"""Endpoint plugins under /plugins/<name>/, and what GET /plugins and /metrics say of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from http_harness import HttpServer
from starlette.routing import Mount

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.points import ENDPOINT_PLUGINS
from graftlm.plugins import Plugin, Role
from graftlm.plugins.current import hold_host
from graftlm.plugins.host import PluginHost
from graftlm.plugins.selection import Decision

KEY = {"authorization": "Bearer k"}


class Greeter(EndpointPlugin):
    """Greets, counts, and fails on demand."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.settings: dict[str, Any] = {}

    def attach_router(self, router: APIRouter) -> None:
        @router.get("/hello")
        async def hello(name: str = "you") -> dict[str, Any]:
            return {"hello": name, "blocks": self.engine.ready.num_blocks, "settings": self.settings}

        @router.get("/broken")
        async def broken() -> None:
            raise ValueError("no greeting left")

        @router.get("/../../v1/models")
        async def shadow() -> None:
            raise AssertionError("a plugin answered for a core route")

    async def init_state(self, engine: Any, settings: dict[str, Any]) -> None:
        self.engine, self.settings = engine, settings


class FailsToAttach(EndpointPlugin):
    def attach_router(self, router: APIRouter) -> None:
        raise LookupError("nothing to attach")


class Mounts(EndpointPlugin):
    def attach_router(self, router: APIRouter) -> None:
        router.routes.append(Mount("/app", app=APIRouter()))


class NoPlugin:
    pass


@pytest.fixture(autouse=True)
def no_host_left() -> Iterator[None]:
    """Other tests find no plugin host."""
    yield
    hold_host(None)


def host_with(target: type, *, name: str = "greeter") -> PluginHost:
    sys.modules.setdefault("http_test_plugins", sys.modules[__name__])
    plugin = Plugin(
        point=ENDPOINT_PLUGINS.name, name=name, value=f"{__name__}:{target.__name__}", distribution="greetings",
        version="1.2", opt_in=True, roles=(str(Role.FRONTEND),), named=True,
    )  # fmt: skip
    host = PluginHost(
        [ENDPOINT_PLUGINS], role=Role.FRONTEND, process="front end",
        decisions=[Decision(plugin=plugin, state="on", reason="named")], settings={"greetings": {"loud": True}},
    )  # fmt: skip
    host.install()
    return host


def test_an_enabled_plugin_serves_under_its_own_path() -> None:
    """Its state is initialized with engine and settings; the ledger and the OpenAPI document know it."""
    host = host_with(Greeter)
    with HttpServer(plugin_host=host) as server:
        answer = httpx.get(f"{server.url}/plugins/greeter/hello?name=me")
        document = httpx.get(f"{server.url}/openapi.json").json()

        assert answer.json() == {"hello": "me", "blocks": 10, "settings": {"loud": True}}
        assert "/plugins/greeter/hello" in document["paths"]
        assert host.ledger.count("endpoint_attached", prefix="/plugins/greeter") == 1
        assert host.frozen


def test_a_failing_endpoint_is_a_500_that_names_the_plugin() -> None:
    """Isolated, counted and shown; other routes go on."""
    with HttpServer(plugin_host=host_with(Greeter)) as server:
        response = httpx.get(f"{server.url}/plugins/greeter/broken")
        metrics = httpx.get(f"{server.url}/metrics").text

        error = response.json()["error"]
        assert response.status_code == 500
        assert "'greeter' of greetings 1.2" in error["message"]
        assert "ValueError: no greeting left" in error["message"]
        assert error["code"] == "plugin_failed"
        assert 'graftlm:plugin_errors_total{plugin="greetings:greeter"} 1.0' in metrics
        assert 'graftlm:plugin_state{distribution="greetings",plugin="greetings:greeter"' in metrics
        assert httpx.get(f"{server.url}/plugins/greeter/hello").status_code == 200


def test_metrics_count_the_time_in_a_platforms_hooks() -> None:
    """Seconds in hooks stand beside those of imports and calls, under the plugin's name."""
    host = host_with(Greeter)
    host.ledger.record("hook_called", plugin="acme:chip", hook="set_device", ms=1500.0)
    with HttpServer(plugin_host=host) as server:
        metrics = httpx.get(f"{server.url}/metrics").text

    assert 'graftlm:plugin_call_seconds_total{plugin="acme:chip"} 1.5' in metrics


def test_a_plugin_has_one_label_in_all_metrics() -> None:
    """So that states, errors and seconds can be joined: `plugin` is distribution:name everywhere."""
    host = host_with(Greeter)
    host.ledger.record("hook_called", plugin="greetings:greeter", hook="set_device", ms=1.0)
    with HttpServer(plugin_host=host) as server:
        httpx.get(f"{server.url}/plugins/greeter/broken")
        metrics = httpx.get(f"{server.url}/metrics").text

    families = dict(re.findall(r'^graftlm:(plugin_\w+)\{[^}]*plugin="([^"]*)"', metrics, re.M))
    assert families.keys() >= {"plugin_state", "plugin_errors_total", "plugin_call_seconds_total"}
    assert set(families.values()) == {"greetings:greeter"}


def test_the_api_key_applies_and_core_routes_cannot_be_shadowed() -> None:
    """No key, no plugin; a route that climbs out of its prefix reaches nobody."""
    with HttpServer(plugin_host=host_with(Greeter), api_key=["k"]) as server:
        assert httpx.get(f"{server.url}/plugins/greeter/hello").status_code == 401
        assert httpx.get(f"{server.url}/plugins/greeter/hello", headers=KEY).status_code == 200
        models = httpx.get(f"{server.url}/v1/models", headers=KEY)
        assert models.json()["object"] == "list"
        bad = httpx.get(f"{server.url}/plugins/greeter/hello/more", headers=KEY)
        assert (bad.status_code, bad.json()["error"]["code"]) == (404, "unknown_route")


def test_plugins_tells_plan_and_states() -> None:
    """GET /plugins is the host's own description."""
    with HttpServer(plugin_host=host_with(Greeter)) as server:
        described = httpx.get(f"{server.url}/plugins").json()

        assert set(described) == {"plan", "plugins"}
        assert described["plugins"][0]["name"] == "greeter"
        assert described["plugins"][0]["state"] == "active"


@pytest.mark.parametrize(
    ("target", "words"),
    [(FailsToAttach, "nothing to attach"), (Mounts, "may only add routes"), (NoPlugin, "EndpointPlugin")],
)
def test_a_named_plugin_that_cannot_be_attached_stops_the_start(target: type, words: str) -> None:
    """It was asked for by name, so the server does not start without it; the error names it."""
    server = HttpServer(plugin_host=host_with(target))
    server._run()

    assert server.error is not None
    said = f"{server.error} {getattr(server.error, '__notes__', '')}"
    assert words in said
    assert "greeter" in said
    assert server.client.shut_down
