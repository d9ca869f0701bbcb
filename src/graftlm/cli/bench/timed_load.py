"""A short load on a server that times its plugins: what each of their calls took, by kind and process.

The server counts, with --time-plugin-calls; this reads what its processes wrote into their ledgers when they ended.
It compares nothing with a server without plugins.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from graftlm.cli.bench.client import ApiClient, Exchange
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.load import run_load
from graftlm.cli.bench.prompts import RandomPrompts, as_body
from graftlm.config.arguments import UsageError
from graftlm.config.environment import get
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.call_times import PLUGIN_CALLED, PLUGIN_NOT_TIMED
from graftlm.plugins.live_trace import TraceLine, read_line
from graftlm.plugins.plugin import BUILT_IN_DISTRIBUTIONS

_CONCURRENCY = 4
#: Any vocabulary has as many ids.
_PROMPTS = RandomPrompts(input_len=16, output_len=32, vocab_size=100)
#: Greedy answers take the shortest way; these pass everything that a sampler may do.
_SAMPLED = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.1, "logprobs": 1, "seed": 1}
_ROUTE_TIMEOUT_S = 10.0
_CORE_ROUTE = "GET /v1/models"
#: Points whose plugins are called before the server serves, and not afterwards.
_AT_START = frozenset(("general_plugins", "platform_plugins", "model_loaders", "model_sources"))


class RouteRequest(msgspec.Struct, frozen=True):
    """A request to a plugin's route; `body` is JSON text or empty."""

    method: str
    path: str
    body: str = ""

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


def parse_request(text: str) -> RouteRequest:
    """Read METHOD PATH [JSON]; UsageError where it is none."""
    method, _, rest = text.strip().partition(" ")
    path, _, body = rest.strip().partition(" ")
    problem = "" if method.isalpha() and path.startswith("/") else "it is no METHOD /PATH"
    try:
        json.loads(body or "null")
    except ValueError as error:
        problem = problem or f"its body is no JSON ({error})"
    if problem:
        raise UsageError(f"""--request={text!r}: {problem}; write it as 'POST /plugins/NAME/ROUTE {{"key": 1}}'""")
    return RouteRequest(method.upper(), path, body.strip())


def serving_costs(
    arguments: Sequence[str], *, requests: int, route_requests: Sequence[RouteRequest]
) -> dict[str, Any]:
    """Load a server of its own, and return what its plugins' calls took while it served.

    `requests` completions come twice, greedy and sampled; so many requests go to each route of a plugin, too.
    """
    with tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder:
        trace = Path(folder) / "ledger"
        with LaunchedServer(
            [*arguments, "--time-plugin-calls"], environment={"GRAFTLM_TRACE": str(trace)}
        ) as server:
            server.wait_for_first_token()
            asyncio.run(_complete(server.url, requests))
            routes = [RouteRequest(*_CORE_ROUTE.split()), *_routes_of(server.get("/openapi.json")), *route_requests]
            asked = [_ask(server.port, route, requests) for route in dict.fromkeys(routes)]
            told = server.get("/plugins")
        lines = [read_line(line) for line in trace.read_bytes().splitlines()]
    calls = [
        row for row in _told(lines, PLUGIN_CALLED) if row["kind"] != "core route" or row["hook"] == _CORE_ROUTE
    ]
    calls.sort(key=lambda row: (row["plugin"], row["kind"], -row["calls"]))
    return {
        "calls": calls,
        "requests": asked,
        "not_called": _not_called(told["plugins"], {call["plugin"] for call in calls}),
        "not_timed": _told(lines, PLUGIN_NOT_TIMED),
    }


async def _complete(url: str, requests: int) -> None:
    """Send the completions, greedy ones first; raises GraftlmError if one of them fails."""
    client = ApiClient(url, api_key=get("GRAFTLM_API_KEY"))
    model = await client.first_model()
    for extra in ({"temperature": 0.0}, _SAMPLED):
        bodies = [
            as_body(prompt, model=model, chat=False, extra={**extra, "ignore_eos": True, "return_token_ids": True})
            for prompt in _PROMPTS.make(requests, seed=0)
        ]
        calls = [functools.partial(client.stream, "/completions", body) for body in bodies]
        gaps = itertools.repeat(0.0)
        await run_load(calls, gaps=gaps, max_concurrency=_CONCURRENCY, on_done=_stop_if_failed)


def _stop_if_failed(exchange: Exchange) -> None:
    if exchange.error is not None:
        raise GraftlmError(f"a completion of the load failed: {exchange.error}")


def _routes_of(openapi: dict[str, Any]) -> Iterator[RouteRequest]:
    """Yield the plugins' routes that a bare GET answers; what others want is for --request to say."""
    for path, operations in openapi["paths"].items():
        operation = operations.get("get", {})
        is_plugins = any(str(tag).startswith("plugin ") for tag in operation.get("tags", ()))
        if is_plugins and not any(parameter.get("required") for parameter in operation.get("parameters", ())):
            yield RouteRequest("GET", path)


def _ask(port: int, request: RouteRequest, count: int) -> dict[str, Any]:
    """Send a request so many times over one connection; return the ns that a client saw, or what failed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ROUTE_TIMEOUT_S)
    headers = {"Content-Type": "application/json"} if request.body else {}
    if key := get("GRAFTLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    times, problem = [], None
    try:
        for _ in range(count):
            begun = time.perf_counter_ns()
            connection.request(request.method, request.path, request.body or None, headers)
            response = connection.getresponse()
            text = response.read()
            times.append(time.perf_counter_ns() - begun)
            if response.status >= 400:
                problem = f"HTTP {response.status}: {text[:200].decode(errors='replace')}"
                break
    except (OSError, http.client.HTTPException) as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return {"route": request.label, "median_ns": statistics.median(times) if times else None, "problem": problem}


def _told(lines: Sequence[TraceLine], event: str) -> list[dict[str, Any]]:
    return [
        {"plugin": line.event.plugin, "process": line.process, **line.event.facts}
        for line in lines
        if line.event.event == event
    ]


def _not_called(plugins: Sequence[dict[str, Any]], called: Collection[str]) -> dict[str, str]:
    """Say of each plugin that is not the engine's own and was not called why that is so."""
    reasons = {}
    for row in plugins:
        label = f"{row['distribution']}:{row['name']}"
        if row["distribution"] in BUILT_IN_DISTRIBUTIONS or label in called:
            continue
        if row["state"] not in ("active", "idle"):
            reasons[label] = f"{row['state']}: {row['reason']}"
        elif row["point"] in _AT_START:
            reasons[label] = "called at the start only"
        else:
            reasons[label] = "not needed by this model and these flags" if row["state"] == "idle" else "loaded only"
    return reasons
