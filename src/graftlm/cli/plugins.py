"""`graftlm plugins`: every installed plugin, its state and why.

It shows what a server with the same selection flags would decide; it starts no engine.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from graftlm.cli.startup import make_parser, show_help_if_asked, start_logging, start_plugins
from graftlm.config.arguments import (
    ArgumentParser,
    add_config_file_flag,
    add_options,
    read_arguments,
    selection_options,
)
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.errors import PluginError

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

COLUMNS = ("point", "name", "distribution", "version", "state", "reason", "ms")


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins", "List every installed plugin, its state and why.")
    parser.add_argument("--json", action="store_true", help="Print JSON, in the shape of GET /plugins.")
    add_config_file_flag(parser)
    add_options(parser, selection_options())
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    arguments, words = read_arguments(parser, argv, options=selection_options())
    start_logging(arguments, default_levels=["error"])
    try:
        description = start_plugins(arguments).describe()
    except (PluginError, GraftlmError) as error:
        show({"plan": None, "plugins": found_plugins(), "error": str(error)}, as_json=words.json)
        raise
    show(description, as_json=words.json)
    return 0


def show(description: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
    else:
        print_table(description["plugins"])


def found_plugins() -> list[dict[str, Any]]:
    """List what is installed where nothing could be decided; the error that follows says why."""
    return [
        {"point": p.point, "name": p.name, "distribution": p.distribution, "version": p.version,
         "state": "refused" if p.refused else "undecided", "reason": p.refused or "the start is refused"}
        for p in discover(ALL_POINTS).plugins
    ]  # fmt: skip


def print_table(plugins: list[dict[str, Any]]) -> None:
    """Print a table on a terminal, and plain aligned columns into a pipe."""
    rows = [[_cell(column, plugin.get(column)) for column in COLUMNS] for plugin in plugins]
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in [list(COLUMNS), *rows]) for i in range(len(COLUMNS))]
        for row in [list(COLUMNS), *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row, style={"failed": "red", "refused": "red", "disabled": "dim"}.get(row[4]))
    Console().print(table)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if column == "ms" and isinstance(value, int | float) else str(value)
