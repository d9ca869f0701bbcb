"""`graftlm plugins`: every installed plugin, its state and why.

It shows what a server with the same selection flags would decide; it starts no engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graftlm.cli.plugins.table import print_notes, print_table
from graftlm.cli.startup import add_selection_flags, make_parser, start_plugins, start_selection_command
from graftlm.config.arguments import ArgumentParser, Arguments
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.description import slips
from graftlm.plugins.discovery import discover
from graftlm.plugins.errors import PluginError

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery
    from graftlm.plugins.host import PluginHost
    from graftlm.processes.shutdown import ShutdownRequest

_STDOUT, _STDERR = 1, 2

COLUMNS = ("point", "name", "distribution", "version", "state", "reason", "ms")


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins list", "List every installed plugin, its state and why.")
    parser.add_argument("--json", action="store_true", help="Print JSON, in the shape of GET /plugins.")
    add_selection_flags(parser)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    started = start_selection_command(build_parser, argv)
    if started is None:
        return 0
    selection, words = started
    host, error = try_to_start(selection)
    discovery = host.discovery if host is not None else None
    discovery = discovery or discover(ALL_POINTS)
    description: dict[str, Any] = (
        host.describe() if host is not None else {"plan": None, "plugins": found_plugins(discovery)}
    )
    description["foreign"] = [foreign.reason for foreign in discovery.foreign]
    if error is not None:
        description["error"] = str(error)
    if words.json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
    else:
        print_table(COLUMNS, description["plugins"])
        print_notes(description["plugins"])
        for reason in description["foreign"]:
            print(f"note: {reason}")
    if error is not None:
        raise error
    return 0


def try_to_start(arguments: Arguments) -> tuple[PluginHost | None, PluginError | GraftlmError | None]:
    """Decide as a server would; a start that is refused leaves its host, as far as it came, and the error.

    What plugins print goes to stderr: stdout is for the answer.
    """
    hosts: list[PluginHost] = []
    try:
        with _stdout_to_stderr():
            return start_plugins(arguments, on_host=hosts.append), None
    except (PluginError, GraftlmError) as error:
        return (hosts[0] if hosts else None), error


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what Python, native libraries and started programs print, each in its own way."""
    sys.stdout.flush()
    try:
        kept = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # one of them is closed, and nothing can get lost
        kept = -1
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept != -1:
            os.dup2(kept, _STDOUT)
            os.close(kept)


def found_plugins(discovery: Discovery | None = None) -> list[dict[str, Any]]:
    """List what is installed where nothing could be decided; the error that follows says why."""
    discovery = discovery or discover(ALL_POINTS)
    return slips(discovery) + [
        {"point": p.point, "name": p.name, "distribution": p.distribution, "version": p.version,
         "state": "refused" if p.refused else "undecided", "reason": p.refused or "the start is refused",
         "notes": discovery.notes.get(p.identity, [])}
        for p in discovery.plugins
    ]  # fmt: skip
