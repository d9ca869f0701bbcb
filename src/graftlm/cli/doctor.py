"""`graftlm doctor`: the machine, the platform, the kernels and the versions, fit for a bug report.

It shows and never changes anything; what cannot be found out is shown as a problem, not as a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graftlm.cli import machine
from graftlm.cli.plugins.table import aligned, cell
from graftlm.cli.preload_report import as_text, describe_parents
from graftlm.cli.startup import add_selection_flags, make_parser, start_plugins, start_selection_command
from graftlm.config import environment
from graftlm.config.arguments import ArgumentParser, Arguments
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.models.cache_folder import cache_root
from graftlm.platforms.native_kernels import are_kernels, instruction_path, reinstall
from graftlm.plugins.errors import PluginError
from graftlm.plugins.plugin import BUILT_IN_DISTRIBUTIONS, Plugin
from graftlm.processes.apart import run_apart
from graftlm.processes.failure import describe_exit
from graftlm.processes.warm.client import find_warm_parents
from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost
    from graftlm.plugins.selection import Decision
    from graftlm.processes.shutdown import ShutdownRequest

_SECRET = ("GRAFTLM_API_KEY",)
#: What is shown of a plugin that is not the engine's own.
_SHOWN = ("point", "name", "distribution", "version", "state", "reason")

#: What a process runs that imports all that its arguments name.
_IMPORT_ALL = "import sys; from graftlm.plugins.resolve import resolve_class_path as r; list(map(r, sys.argv[1:]))"
_LONGEST_IMPORT_S = 60


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
    host = _start_plugins(arguments, problems)
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(environment.PREFIX)}
    unknown = environment.unknown_variables()
    problems += [f"{name} is set, and graftlm does not read it" for name in unknown]
    return {
        "graftlm": {"version": __version__, **machine.python_facts(), "cache": str(cache_root())},
        "platform": _platform(host),
        "kernels": _kernels(host, problems),
        "machine": machine.machine_facts(),
        "memory": machine.memory_facts(),
        "threads": machine.thread_facts(),
        "versions": machine.package_versions(),
        "plugins": _plugins(host, problems),
        "warm_parents": _warm_parents(problems),
        "environment": {name: "(set)" if name in _SECRET else value for name, value in variables.items()},
        "problems": problems,
    }


def _start_plugins(arguments: Arguments, problems: list[str]) -> PluginHost | None:
    try:
        return start_plugins(arguments)
    except (PluginError, ConfigError, GraftlmError) as error:
        problems.append(str(error))
        return None


def _platform(host: PluginHost | None) -> dict[str, Any]:
    if host is None:
        return {"name": None}
    from graftlm.platforms import current_platform as platform

    detectors = [event.facts for event in host.ledger.of("detector_called")]
    return {
        "name": host.platform_choice.name if host.platform_choice else None,
        "device": platform.get_device_name(),
        "class": f"{type(platform).__module__}:{type(platform).__qualname__}",
        "detectors": {fact["name"]: f"{fact['answer']} ({fact['reason']})" for fact in detectors},
    }


def _kernels(host: PluginHost | None, problems: list[str]) -> dict[str, Any]:
    """Tell whether the native kernels compute, and with which instructions; without them it is plain torch."""
    decisions = [d for d in host.decisions if are_kernels(d.plugin)] if host is not None else []
    used = {d.plugin.name for d in decisions if d.enabled}
    if not used:
        return {"graftlm-kernels": _why_unused(host, decisions), "GGUF blocks": "become plain weights"}
    try:
        path: str | None = instruction_path()
    except GraftlmError as error:
        path = None
        problems.append(str(error))
    failing = _failing_kernels([d.plugin for d in decisions if d.enabled])
    problems += failing
    return {
        "graftlm-kernels": decisions[0].plugin.version + (", fails, see problems" if failing else ""),
        "instructions": path,
        "GGUF blocks": "Q8_0, Q4_0 and Q4_1 are kept, others become plain weights"
        if "gguf" in used
        else "become plain weights",
    }


def _failing_kernels(plugins: Sequence[Plugin]) -> list[str]:
    """Import the kernels' Python code, as a worker would, in another process: it needs torch. Say what fails."""
    try:
        done = run_apart(
            [sys.executable, "-P", "-c", _IMPORT_ALL, *dict.fromkeys(p.value for p in plugins)],
            timeout_s=_LONGEST_IMPORT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        problem = f"importing it takes more than {_LONGEST_IMPORT_S} s"
    else:
        if done.returncode == 0:
            return []
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        problem = last[0] if last and done.returncode > 0 else f"the process {describe_exit(done.returncode)}"
    plugin = plugins[0]
    return [
        f"{plugin.distribution} {plugin.version} fails where it computes ({problem}); {reinstall(plugin)}, or "
        f"leave it out with --disable-plugin {plugin.left_out_by}"
    ]


def _why_unused(host: PluginHost | None, decisions: Sequence[Decision]) -> str | None:
    if host is None:
        return None
    if not decisions:
        return "not installed: ops run in plain torch"
    (version, state, reason), *_ = ((d.plugin.version, d.state, d.reason) for d in decisions)
    return f"{version}, {'refused, see problems' if state == 'refused' else f'{state}: {reason}'}"


def _plugins(host: PluginHost | None, problems: list[str]) -> dict[str, Any] | None:
    """Count the engine's own and list the others; one that was refused or failed is a problem."""
    if host is None:
        return None
    rows = host.describe()["plugins"]
    own = Counter(
        f"{row['distribution']} {row['version']}" for row in rows if row["distribution"] in BUILT_IN_DISTRIBUTIONS
    )
    lost: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row["state"] in ("refused", "failed"):
            why = (row["state"], row["distribution"], row["version"], row["reason"])
            lost.setdefault(why, []).append(row["name"])
    problems += [
        f"{state}: {', '.join(names)} of {distribution} {version}: {reason}"
        for (state, distribution, version, reason), names in lost.items()
    ]
    counts = " and ".join(f"{number} of {whose}" for whose, number in own.items())
    return {
        "built in": f"{counts}, which `graftlm plugins` lists",
        "installed": [
            {key: row[key] for key in _SHOWN} for row in rows if row["distribution"] not in BUILT_IN_DISTRIBUTIONS
        ],
    }


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
            width = max((len(key) for key, value in content.items() if not _is_nested(value)), default=0)
            lines = []
            for key, value in content.items():
                if _is_nested(value):
                    lines += [f"{key}:", *(f"  {line}" for line in _lines_of(value))]
                else:
                    shown = "none" if value == [] else "unknown" if value is None else value
                    lines.append(f"{key:<{width}}  {shown}")
            return lines
        case [dict(), *_]:
            return aligned([[cell(value) for value in row.values()] for row in content])
        case list():
            return [f"- {item}" for item in content]
    return [] if content is None else [str(content)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)
