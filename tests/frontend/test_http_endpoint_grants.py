"""Endpoint plugins in place of core routes and without the API key: by flag only, recorded, shown and logged."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
from endpoint_fakes import host_of
from fastapi import APIRouter
from http_harness import HttpServer
from plugin_packages import Site, run_graftlm
from starlette.routing import Mount

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.plugins import PluginFailed, UnknownPlugin

KEY = {"authorization": "Bearer k"}


class Guest(EndpointPlugin):
    """Has a route of its own, a core route in place of the server's, and one beside them."""

    def attach_router(self, router: APIRouter) -> None:
        router.add_api_route("/own", self.own, methods=["GET"])

    def attach_core_routes(self, router: APIRouter) -> None:
        inner = APIRouter(prefix="/v1")
        inner.add_api_route("/models", self.models, methods=["GET"], summary="The guest's models.")
        inner.add_api_route("/guests/{guest}", self.guest, methods=["GET"])
        router.include_router(inner)

    async def own(self) -> str:
        return "own"

    async def models(self) -> dict[str, str]:
        return {"object": "guests"}

    async def guest(self, guest: str) -> None:
        raise ValueError(f"no room for {guest}")


def test_without_the_flag_core_routes_stay_the_servers(caplog) -> None:
    """The plugin serves under its own path, and log and GET /plugins say which flag it lacks."""
    with caplog.at_level(logging.WARNING), HttpServer(plugin_host=host_of(guest=Guest)) as server:
        models = httpx.get(f"{server.url}/v1/models").json()
        own = httpx.get(f"{server.url}/plugins/guest/own").json()
        missing = httpx.get(f"{server.url}/v1/guests/me")
        (row,) = httpx.get(f"{server.url}/plugins").json()["plugins"]

    assert (models["object"], own, missing.status_code) == ("list", "own", 404)
    assert row["notes"] == ["its core routes are not attached: --endpoint-overrides guest grants them"]
    assert "endpoint_overrides_not_granted plugin=guest-dist:guest" in caplog.text


def test_with_the_flag_they_are_the_plugins_and_everybody_is_told(caplog) -> None:
    """In the answer, the OpenAPI document, GET /plugins, the ledger and the log; other routes stay the server's."""
    host = host_of(guest=Guest)
    with caplog.at_level(logging.INFO), HttpServer(plugin_host=host, endpoint_overrides=["guest"]) as server:
        models = httpx.get(f"{server.url}/v1/models").json()
        document = httpx.get(f"{server.url}/openapi.json").json()
        (row,) = httpx.get(f"{server.url}/plugins").json()["plugins"]
        other = httpx.get(f"{server.url}/v1/models/talker").json()
        posted = httpx.post(f"{server.url}/v1/models")

    assert models == {"object": "guests"}
    assert document["paths"]["/v1/models"]["get"]["summary"] == "The guest's models."
    assert "/v1/guests/{guest}" in document["paths"]
    assert (other["id"], posted.status_code) == ("talker", 405)
    assert [line.partition(" -> ")[0] for line in row["registrations"]] == [
        "core_routes: GET /v1/guests/{guest}", "core_routes: GET /v1/models",
    ]  # fmt: skip
    assert host.ledger.count("registered", registry="core_routes", key="GET /v1/models", owner="guest-dist") == 1
    assert "endpoint_grant_used plugin=guest-dist:guest core_routes='GET /v1/models'" in caplog.text


def test_a_failing_core_route_of_a_plugin_is_a_500_that_names_it() -> None:
    """Blame follows the route, wherever it lies; the server's own routes are not blamed on the plugin."""
    with HttpServer(plugin_host=host_of(guest=Guest), endpoint_overrides=["guest"]) as server:
        response = httpx.get(f"{server.url}/v1/guests/me")
        unknown = httpx.get(f"{server.url}/v1/models/nobody")
        metrics = httpx.get(f"{server.url}/metrics").text

    assert response.status_code == 500
    assert "'guest' of guest-dist 1.2" in response.json()["error"]["message"]
    assert unknown.status_code == 404
    assert 'graftlm:plugin_errors_total{plugin="guest-dist:guest"} 1.0' in metrics


def test_an_error_of_the_engine_s_own_kind_names_the_plugin_too_and_a_wrong_request_does_not() -> None:
    """Whose code raises is what counts, not whose class it is; what the caller got wrong stays a 400."""
    from graftlm.contracts.errors import RequestError, StartupError

    class Borrower(Guest):
        async def own(self) -> str:
            raise StartupError("borrowed")

        async def models(self) -> dict[str, str]:
            raise RequestError("ask otherwise")

    with HttpServer(plugin_host=host_of(guest=Borrower), endpoint_overrides=["guest"]) as server:
        own, wrong = httpx.get(f"{server.url}/plugins/guest/own"), httpx.get(f"{server.url}/v1/models")

    assert (own.status_code, own.json()["error"]["code"]) == (500, "plugin_failed")
    assert "'guest' of guest-dist 1.2" in own.json()["error"]["message"]
    assert wrong.status_code == 400


def test_core_routes_of_a_plugin_need_the_api_key_whatever_the_other_flag_says() -> None:
    """--endpoint-no-auth opens /plugins/<name>/ and nothing else; the document says what needs no key."""
    host = host_of(guest=Guest)
    options = {"api_key": ["k"], "endpoint_overrides": ["guest"], "endpoint_no_auth": ["guest-dist:guest"]}
    with HttpServer(plugin_host=host, **options) as server:
        codes = {
            path: httpx.get(server.url + path).status_code
            for path in (
                "/plugins/guest/own", "/plugins/guest", "/plugins", "/plugins/guesting/own", "/v1/models",
                "/plugins/guest/../../v1/models", "/plugins//guest/own",
            )
        }  # fmt: skip
        document = httpx.get(f"{server.url}/openapi.json", headers=KEY).json()
        (row,) = httpx.get(f"{server.url}/plugins", headers=KEY).json()["plugins"]

    assert codes == {
        "/plugins/guest/own": 200, "/plugins/guest": 404, "/plugins": 401, "/plugins/guesting/own": 401,
        "/v1/models": 401, "/plugins/guest/../../v1/models": 401, "/plugins//guest/own": 401,
    }  # fmt: skip
    assert document["paths"]["/plugins/guest/own"]["get"]["security"] == []
    assert "security" not in document["paths"]["/v1/models"]["get"]
    assert "routes_without_key: /plugins/guest -> no API key is asked for" in row["registrations"]


def core(*paths: str, adds: Any = None) -> type[EndpointPlugin]:
    """Make a plugin class with these core routes, or with what `adds` does to the router."""

    class Core(EndpointPlugin):
        def attach_core_routes(self, router: APIRouter) -> None:
            for path in paths:
                router.add_api_route(path, answer, methods=["GET"])
            if adds is not None:
                adds(router)

    return Core


async def answer() -> str:
    return "core"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (core("/plugins"), "begin it with a literal part other than /plugins"),
        (core("/plugins/other/route"), "begin it with a literal part other than /plugins"),
        (core("/{anything}"), "begin it with a literal part"),
        (core("/{rest:path}"), "begin it with a literal part"),
        (core("/"), "begin it with a literal part"),
        (core("/v1/{rest:path}"), "would take /v1/chat/completions too"),
        (core("/v1/{name}"), "would take /v1/completions too"),
        (core(adds=lambda router: router.routes.append(Mount("/v1", app=APIRouter()))), "is no plain HTTP route"),
        (core(adds=lambda router: router.add_api_websocket_route("/v1/live", answer)), "is no plain HTTP route"),
        (core(), "adds no route"),
    ],
)
def test_a_core_route_takes_what_it_names_and_no_more(target, says) -> None:
    """Else the start is refused, with plugin, route and cure; /plugins tells of plugins, and stays the server's."""
    server = HttpServer(plugin_host=host_of(guest=target), endpoint_overrides=["guest"])
    server._run()

    assert isinstance(server.error, PluginFailed)
    assert "'guest' of guest-dist 1.2" in str(server.error) and says in str(server.error)


def test_two_plugins_cannot_take_one_core_route() -> None:
    """Both are named; the operator grants it to one."""
    host = host_of(one=core("/v1/models"), two=core("/v1/models"))
    server = HttpServer(plugin_host=host, endpoint_overrides=["one", "two"])
    server._run()

    assert "'two' of two-dist 1.2" in str(server.error)
    assert "GET /v1/models is taken by plugin 'one' of one-dist 1.2 already" in str(server.error)


@pytest.mark.parametrize("flag", ["endpoint_overrides", "endpoint_no_auth"])
def test_a_grant_to_nobody_is_refused_with_the_nearest_name(flag) -> None:
    """A misspelt grant would otherwise be silent."""
    server = HttpServer(plugin_host=host_of(guest=Guest), **{flag: ["Gast"]})
    server._run()

    assert isinstance(server.error, UnknownPlugin)
    assert re.search(rf"--{flag.replace('_', '-')}: .*'Gast'; did you mean 'guest'", str(server.error))


class Raises(EndpointPlugin):
    async def init_state(self, engine: Any, settings: dict[str, Any]) -> None:
        raise KeyError("token")


@pytest.mark.parametrize(
    ("target", "phase"),
    [
        (Raises, "EndpointPlugin.init_state: KeyError: 'token'"),
        (lambda: 3, "EndpointPlugin.attach_router: TypeError: it makes an int"),
    ],
)
def test_what_fails_at_the_start_is_told_with_the_cure(target, phase) -> None:
    """Plugin, distribution, version, process, phase, error, and what to do about it."""
    server = HttpServer(plugin_host=host_of(guest=target))
    server._run()

    said = str(server.error)
    assert isinstance(server.error, PluginFailed)
    assert f"endpoint plugin 'guest' of guest-dist 1.2 failed in process 'front end' at {phase}" in said
    assert said.endswith("; update or uninstall guest-dist, or leave it out of the flag that names it")


def test_the_command_line_refuses_a_wrong_grant_before_an_engine_is_started(tmp_path, tiny_llama) -> None:
    """With the flag that would enable the plugin."""
    site = Site(tmp_path / "site").write(
        "guest-dist", entry_points={"endpoint_plugins": {"guest": "guest:Guest"}}, files={"guest.py": "1/0\n"}
    )
    done = run_graftlm("serve", str(tiny_llama), "--port=0", "--endpoint-overrides=guest", env=site.environment)

    assert done.returncode == 1
    assert "--endpoint-overrides: no installed plugin is called 'guest'" in done.stderr
    assert "--enable-plugin guest" in done.stderr and "Traceback" not in done.stderr
