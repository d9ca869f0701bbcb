"""`graftlm plugins doctor`: imports and checks every installed plugin, whether the selection would use it or not.

The plugins run in a helper process; this one only reads metadata, and decides nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.plugins.examiner import ExamineRequest, Verdict
from graftlm.cli.plugins.table import print_notes, print_table
from graftlm.cli.startup import add_selection_flags, make_parser, start_selection_command
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.plan import PlatformChoice
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.plugin_config import read_settings
from graftlm.plugins.spelling import counted
from graftlm.processes.apart import run_apart
from graftlm.processes.failure import describe_exit
from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery
    from graftlm.processes.shutdown import ShutdownRequest

COLUMNS = ("state", "point", "name", "distribution", "version", "ms", "answer")
_CPU = PlatformChoice(
    name="cpu", distribution="graftlm", version=__version__, class_path="graftlm.platforms.cpu:CpuPlatform",
    reason="for want of a better one", built_in=True,
)  # fmt: skip


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins doctor", "Import and check every installed plugin in a process of its own.")
    _add_own_flags(parser)
    add_selection_flags(parser)
    return parser


def _own_parser() -> ArgumentParser:
    """Return a parser of the doctor's own flags; what it leaves is a selection."""
    parser = ArgumentParser(add_help=False)
    _add_own_flags(parser)
    return parser


def _add_own_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument("--all", action="store_true", help="Check the engine's own plugins too.")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="Longest time for a plugin (default: 60)."
    )


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    started = start_selection_command(build_parser, argv, default_levels=["critical"])
    if started is None:
        return 0
    _, words = started
    _, selection = _own_parser().parse_known_args(argv)
    if words.timeout <= 0:
        raise UsageError(f"--timeout={words.timeout:g}: use a time above 0")
    discovery = discover(ALL_POINTS)
    wanted = [p for p in discovery.plugins if words.all or not p.built_in]
    platform, notes, problem = try_a_start(selection, timeout_s=words.timeout)
    verdicts = examine_all(wanted, discovery, platform or _CPU, timeout_s=words.timeout)
    for identity, problem in duplicates(discovery.plugins):
        if identity in verdicts:
            verdicts[identity].broken.append(problem)
    report: dict[str, Any] = {
        "start": f"refused: {problem}" if problem else "not refused",
        "plugins": [
            {**_row(plugin, verdicts[plugin.identity]), "notes": notes.get(plugin.identity, [])}
            for plugin in wanted
        ],
        "warnings": installation_warnings(discovery),
    }
    if words.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report, skipped=len(discovery.plugins) - len(wanted))
    return 1 if problem or any(row["state"] == "broken" for row in report["plugins"]) else 0


def try_a_start(
    selection: Sequence[str], *, timeout_s: float
) -> tuple[PlatformChoice | None, dict[str, list[str]], str]:
    """Let another process decide as a server would.

    Returns the platform, what is odd about plugins (by identity) and no error, and why a start is refused or "".
    """
    command = [sys.executable, "-P", "-m", "graftlm", "plugins", "list", "--json", *selection]
    try:
        done = run_apart(command, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return None, {}, f"it takes more than {timeout_s:g} s"
    try:
        described = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None, {}, f"the process that tried {_end_of(done)}"
    platform = (described.get("plan") or {}).get("platform")
    choice = msgspec.convert(platform, PlatformChoice) if platform else None
    notes = {f"{r['point']}={r['distribution']}:{r['name']}": r.get("notes", []) for r in described["plugins"]}
    return choice, notes, described.get("error", "")


def examine_all(
    plugins: Sequence[Plugin], discovery: Discovery, platform: PlatformChoice, *, timeout_s: float
) -> dict[str, Verdict]:
    """Return a verdict on each plugin, by identity; one that is refused is not imported."""
    verdicts = {p.identity: Verdict(plugin=p.identity, broken=[p.refused]) for p in plugins if p.refused}
    request = ExamineRequest(
        plugins=[p for p in plugins if not p.refused],
        platform=platform,
        settings=read_settings([], discovery.settings, plugins=plugins),
        timeout_s=timeout_s,
    )
    while request.plugins:
        command = [sys.executable, "-P", "-m", "graftlm.cli.plugins.examiner"]
        done = run_apart(command, given=msgspec.msgpack.encode(request))
        for line in done.stdout.splitlines():
            verdict = msgspec.json.decode(line, type=Verdict)
            verdicts[verdict.plugin] = verdict
        unanswered = [p for p in request.plugins if p.identity not in verdicts]
        if unanswered:  # the first one ended the helper process itself; the others are heard by another
            guilty = unanswered.pop(0).identity
            problem = f"it ended the helper process that examines plugins, which {_end_of(done)}"
            verdicts[guilty] = Verdict(plugin=guilty, broken=[problem])
        request.plugins = unanswered
    return verdicts


def _end_of(done: subprocess.CompletedProcess[bytes]) -> str:
    """Say how a helper process ended, with its last line where it ended by itself."""
    how = describe_exit(done.returncode).partition(" (")[0]
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done.returncode >= 0 else []
    return ": ".join([how, *last])


def duplicates(plugins: Sequence[Plugin]) -> list[tuple[str, str]]:
    """Return identity and problem of each plugin that claims a key which another distribution claims too."""
    found = []
    for plugin in plugins:
        others = [
            p for p in plugins if p.key and (p.point, p.name) == (plugin.point, plugin.name) and p is not plugin
        ]
        settled = [
            p for p in (plugin, *others) if any(o.answers_to(n) for n in p.replaces for o in (plugin, *others))
        ]
        if others and len(settled) != 1:
            owners = ", ".join(f"{p.distribution} {p.version}" for p in others)
            found.append(
                (plugin.identity, f"{plugin.name!r} is claimed by {owners} too, and neither replaces the other")
            )
    return found


def installation_warnings(discovery: Discovery) -> list[str]:
    """Say what is odd about the installation as a whole."""
    lines = [
        f"{s.distribution} is installed twice: {s.used_location} ({s.used_version}) is used, {s.location} "
        f"({s.version}) is not; uninstall one"
        for s in discovery.shadows
        if s.differs
    ]
    return lines + [
        f"{g.distribution} has entry points in {g.group!r}, which no extension point has; {g.hint or 'nobody asks'}"
        for g in discovery.unknown_groups
    ]


def _row(plugin: Plugin, verdict: Verdict) -> dict[str, Any]:
    return {
        "state": "broken" if verdict.broken else "warning" if verdict.warnings else "sound",
        "point": plugin.point, "name": plugin.name, "distribution": plugin.distribution,
        "version": plugin.version, "target": plugin.value, "ms": verdict.import_ms,
        "torch_ms": verdict.torch_ms, "answer": verdict.answer, "broken": verdict.broken,
        "warnings": verdict.warnings,
    }  # fmt: skip


def _print(report: dict[str, Any], *, skipped: int) -> None:
    rows = report["plugins"]
    if rows:
        print_table(COLUMNS, rows)
    for row in rows:
        for problem in row["broken"]:
            print(f"broken: {row['distribution']}:{row['name']} ({row['point']}): {problem}")
    for row in rows:
        for problem in row["warnings"]:
            print(f"warning: {row['distribution']}:{row['name']} ({row['point']}): {problem}")
    print_notes(rows)
    for problem in report["warnings"]:
        print(f"warning: {problem}")
    broken = sum(row["state"] == "broken" for row in rows)
    more = f"; {skipped} of the engine's own were not checked, --all checks them" if skipped else ""
    print(f"{counted(len(rows), 'plugin')} checked, {broken} broken{more}")
    print(f"a start is {report['start']}")
