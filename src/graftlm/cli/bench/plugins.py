"""`graftlm bench plugins`: what each installed plugin costs at start, in each process, and per call while serving.

The first comes from the ledgers of a launched server, the second from one that times its plugins under a short
load, and, for ops, attention backends and quantization methods, from a process of its own that calls them on small
cases. It does not say who is right, only who takes how long.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from graftlm.cli.bench import report
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.launch_flags import make_launch_parser, read_launch_words
from graftlm.cli.bench.plugin_tables import print_result
from graftlm.cli.bench.timed_load import parse_request, serving_costs
from graftlm.cli.startup import show_help_if_asked
from graftlm.cli.startup_report import plugin_ms
from graftlm.config.arguments import ArgumentParser
from graftlm.contracts.errors import GraftlmError
from graftlm.processes.apart import run_apart

_DISCOVERY = "looking through all packages"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graftlm.processes.shutdown import ShutdownRequest


def build_parser() -> ArgumentParser:
    parser = make_launch_parser("bench plugins", "What installed plugins cost.", rounds=3)
    add = parser.add_argument
    add("--calls", type=int, default=2000, metavar="N",
        help="Calls of each op, attention backend and quantization method (default: 2000).")  # fmt: skip
    add("--requests", type=int, default=20, metavar="N",
        help="Completions, greedy and as many sampled, and requests to each route of an endpoint plugin, "
        "of a server that times its plugins (default: 20).")  # fmt: skip
    add("--request", action="append", default=[], metavar="TEXT",
        help="Another request for an endpoint plugin, beside its plain GET routes, as "
        "'POST /plugins/NAME/ROUTE {\"key\": 1}' (repeatable).")  # fmt: skip
    add("--no-ops", action="store_true", help="Leave out the process that calls ops, backends and methods.")
    add("--no-serving", action="store_true", help="Leave out the load on a server that times its plugins.")
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words, arguments = read_launch_words(parser, argv, counts=("rounds", "calls", "requests"))
    route_requests = [parse_request(text) for text in words.request]
    settings = {name: getattr(words, name) for name in ("rounds", "calls", "requests", "request")}
    result = report.stamp("plugins", {"arguments": arguments, **settings})
    with report.Progress(words.rounds, "launches", show=not words.no_progress) as bar:
        result["start_ms"], result["idle"] = start_costs(arguments, rounds=words.rounds, bar=bar)
    result["ops"] = {} if words.no_ops else op_costs(words.calls, arguments[1:])
    result["serving"] = {}
    if not words.no_serving:
        result["serving"] = serving_costs(arguments, requests=words.requests, route_requests=route_requests)
    report.write_json(result, words.json)
    if words.json != "-":
        print_result(result)
    return 0


def start_costs(
    arguments: Sequence[str], *, rounds: int, bar: report.Progress
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return the median milliseconds at start, by plugin and process, and the plugins that were not needed."""
    idle: list[str] = []
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        with LaunchedServer(arguments) as server:
            server.wait_for_first_token()
            told = server.get("/plugins?events=true")
        events = told["events"]
        idle = [f"{p['distribution']}:{p['name']}" for p in told["plugins"] if p["state"] == "idle"]
        for process in dict.fromkeys(event["process"] for event in events):
            for plugin, ms in {**discovery_ms(events, process), **plugin_ms(events, process)}.items():
                seen[plugin][process].append(ms)
        bar.advance()
    medians = {
        plugin: {process: statistics.median(values) for process, values in processes.items()}
        for plugin, processes in seen.items()
    }
    return medians, idle


def discovery_ms(events: Sequence[dict[str, Any]], process: str) -> dict[str, float]:
    """Return what it takes to look through all installed packages, which is nobody's own cost."""
    found = [e for e in events if e["event"] == "discovered" and e["process"] == process]
    return {_DISCOVERY: sum(float(event["facts"]["ms"]) for event in found)} if found else {}


def op_costs(calls: int, served: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a call of each op, attention backend and quantization method costs.

    They are called in a process of their own, since they need torch.
    """
    command = [sys.executable, "-m", "graftlm.cli.bench.op_calls", str(calls), *served]
    done = run_apart(command)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-1500:]
        raise GraftlmError(f"the process that calls ops failed: {said}")
    costs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return costs
