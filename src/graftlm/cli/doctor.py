"""`graftlm doctor`: the machine, the platform, the kernels and the versions, fit for a bug report.

It shows and never changes anything; what cannot be found out is shown as a problem, not as a failure.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from graftlm.cli import machine
from graftlm.cli.preload_report import as_text, describe_parents
from graftlm.cli.startup import add_selection_flags, make_parser, start_plugins, start_selection_command
from graftlm.config import environment
from graftlm.config.arguments import ArgumentParser, Arguments
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.errors import PluginError
from graftlm.processes.warm.client import find_warm_parents
from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

_SECRET = ("GRAFTLM_API_KEY",)


def build_parser() -> ArgumentParser:
    parser = make_parser("doctor", "Show the machine, the platform, the kernels and the versions.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    add_selection_flags(parser)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    started = start_selection_command(build_parser, argv)
    if started is None:
        return 0
    selection, words = started
    report = examine(selection)
    print(json.dumps(report, indent=2, ensure_ascii=False) if words.json else _as_text(report))
    return 0


def examine(arguments: Arguments) -> dict[str, Any]:
    """Gather everything, each part by itself."""
    problems: list[str] = []
    platform, plugins = _platform_and_plugins(arguments, problems)
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(environment.PREFIX)}
    unknown = environment.unknown_variables()
    problems += [f"{name} is set, and graftlm does not read it" for name in unknown]
    return {
        "graftlm": {"version": __version__, **machine.python_facts()},
        "platform": platform,
        "kernels": machine.kernel_facts(),
        "machine": machine.machine_facts(),
        "memory": machine.memory_facts(),
        "threads": machine.thread_facts(),
        "versions": machine.package_versions(),
        "plugins": plugins,
        "warm_parents": _warm_parents(problems),
        "environment": {name: "(set)" if name in _SECRET else value for name, value in variables.items()},
        "problems": problems,
    }


def _platform_and_plugins(
    arguments: Arguments, problems: list[str]
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    try:
        host = start_plugins(arguments)
    except (PluginError, ConfigError, GraftlmError) as error:
        problems.append(str(error))
        return {"name": None}, None
    from graftlm.platforms import current_platform as platform

    detectors = [event.facts for event in host.ledger.of("detector_called")]
    outside = [
        {key: plugin[key] for key in ("point", "name", "distribution", "version", "state", "reason")}
        for plugin in host.describe()["plugins"]
        if plugin["distribution"] not in ("graftlm", "graftlm-kernels")
    ]
    return {
        "name": host.platform_choice.name if host.platform_choice else None,
        "device": platform.get_device_name(),
        "class": f"{type(platform).__module__}:{type(platform).__qualname__}",
        "detectors": {fact["name"]: f"{fact['answer']} ({fact['reason']})" for fact in detectors},
    }, outside


def _warm_parents(problems: list[str]) -> list[str]:
    """Tell of the processes of `graftlm preload`; a stale one is a problem, since it only takes memory."""
    described = describe_parents(find_warm_parents(on_problem=problems.append))
    problems += [
        f"the warm parent {facts['pid']} of {facts['model']} is of no use any more; renew it with `graftlm preload`"
        for facts in described
        if facts["state"] == "stale"
    ]
    return [as_text([facts]).replace("\n  ", "; ") for facts in described]


def _as_text(report: dict[str, Any]) -> str:
    lines: list[str] = []
    for title, content in report.items():
        lines.append(f"{title}:" if content else f"{title}: none")
        lines += [f"  {line}" for line in _lines_of(content)]
    return "\n".join(lines)


def _lines_of(content: Any) -> list[str]:
    match content:
        case dict():
            width = max((len(key) for key in content), default=0)
            lines = []
            for key, value in content.items():
                if isinstance(value, dict):
                    lines += [f"{key}:", *(f"  {line}" for line in _lines_of(value))]
                else:
                    lines.append(f"{key:<{width}}  {'unknown' if value is None else value}")
            return lines
        case list():
            return [
                f"- {', '.join(str(v) for v in item.values() if v)}" if isinstance(item, dict) else f"- {item}"
                for item in content
            ]
    return [] if content is None else [str(content)]
