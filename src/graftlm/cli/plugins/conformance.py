"""`graftlm plugins test PACKAGE`: runs the conformance suites of everything that a package declares.

PACKAGE is the folder of a source tree, which need not be installed, or an installed distribution. The suites run in
a helper process, so that a plugin that ends its process is a failure like any other; this one imports no plugin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.cli.plugins.table import print_table
from graftlm.cli.startup import make_parser, show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.spelling import counted
from graftlm.processes.apart import run_apart

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

COLUMNS = ("state", "suite", "check")


class NothingToTest(GraftlmError):
    def __init__(self, package: str, *, problem: str) -> None:
        super().__init__(f"{package!r}: {problem}")


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins test", "Run the conformance suites of everything that a plugin package declares.")
    parser.usage = "graftlm plugins test PACKAGE [--json] [--all] [--timeout SECONDS]"
    parser.add_argument("package", metavar="PACKAGE", help="Folder of its source tree, or installed distribution.")
    parser.add_argument("--all", action="store_true", help="Show checks that passed or do not apply, too.")
    parser.add_argument("--json", action="store_true", help="Print every check as JSON.")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="Longest time for all (default: 600)."
    )
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words = parser.parse_strictly(argv)
    if words.timeout <= 0:
        raise UsageError(f"--timeout={words.timeout:g}: use a time above 0")
    if Path(words.package).is_dir() and not (Path(words.package) / "pyproject.toml").is_file():
        raise NothingToTest(words.package, problem="the folder has no pyproject.toml; name a package's own folder")
    checks = list(run_suites(words.package, timeout_s=words.timeout))
    failed = [check for check in checks if check["state"] == "failed"]
    if words.json:
        print(json.dumps(checks, indent=2, ensure_ascii=False))
    else:
        _print(checks, failed, everything=words.all)
    return 1 if failed else 0


def run_suites(package: str, *, timeout_s: float) -> Iterable[dict[str, Any]]:
    """Return what came of each check: suite, check, state and, where it failed or was skipped, the text."""
    command = [sys.executable, "-P", "-m", "graftlm.cli.plugins.suite_runner", package]
    try:
        done = run_apart(command, timeout_s=timeout_s)
        output, code, errors = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        output, code, errors = late.stdout or b"", None, f"it takes more than {timeout_s:g} s".encode()
    said: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    checks = [check for check in said if check["state"] not in ("running", "end")]
    if said and said[-1]["state"] == "end":
        return checks
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
    if not said:
        raise NothingToTest(package, problem=last[0])
    return [*checks, {**said[-1], "state": "failed", "text": f"the process that runs the suites ended: {last[0]}"}]


def _print(checks: list[dict[str, Any]], failed: list[dict[str, Any]], *, everything: bool) -> None:
    shown = checks if everything else failed
    if shown:
        print_table(COLUMNS, shown)
    for check in shown:
        if check["text"]:
            print(f"\n{check['state']}: {check['suite']}.{check['check']}\n{check['text'].rstrip()}")
    suites = len({check["suite"] for check in checks})
    skipped = sum(check["state"] == "skipped" for check in checks)
    passed = len(checks) - len(failed) - skipped
    made = f"{counted(len(checks), 'check')} in {counted(suites, 'suite')}"
    print(f"{made}: {passed} passed, {len(failed)} failed, {skipped} do not apply")
