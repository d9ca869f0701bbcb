"""`graftlm plugins lock [FILE]`: writes what `--plugins-locked FILE` then insists on. It imports no plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graftlm.cli.startup import add_selection_flags, make_parser, selected_plugins, start_selection_command
from graftlm.config.arguments import ArgumentParser
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.lock import DEFAULT_NAME, make_lock, write_lock
from graftlm.plugins.selection import select
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins lock", "Write names, versions and file hashes of the enabled plugins to a file.")
    parser.usage = "graftlm plugins lock [FILE] [OPTION …]"
    parser.add_argument("file", nargs="?", default=DEFAULT_NAME, help=f"File to write (default: {DEFAULT_NAME}).")
    parser.add_argument("--json", action="store_true", help="Print the lock as JSON, too.")
    add_selection_flags(parser)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    started = start_selection_command(build_parser, argv)
    if started is None:
        return 0
    selection, words = started
    lock = make_lock(select(discover(ALL_POINTS), selected_plugins(selection)))
    try:
        write_lock(lock, words.file)
    except OSError as error:
        raise GraftlmError(
            f"{words.file} cannot be written: {error.strerror or error}; name another file"
        ) from error
    if words.json:
        print(json.dumps(msgspec.to_builtins(lock), indent=2))
    else:
        distributions = counted(len(lock.distributions), "distribution")
        print(f"locked {counted(len(lock.plugins), 'plugin')} of {distributions} in {words.file}")
        print(f"Next: graftlm serve MODEL --plugins-locked {Path(words.file)}")
    return 0
