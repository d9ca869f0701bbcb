"""Prints rows: a table on a terminal, plain aligned columns into a pipe. It does not know what they say."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

#: One cell widens its whole column; `--json` has all of it.
_WIDEST = 400

#: The colour of a row, by the word in its state column.
_STYLES = {
    "failed": "red",
    "refused": "red",
    "broken": "red",
    "warning": "yellow",
    "disabled": "dim",
    "won": "bold",
}


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, state: str = "state") -> None:
    """Print the named columns of `rows`; None is an empty cell, and numbers have one decimal."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join(aligned([list(columns), *cells])))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row, source in zip(cells, rows, strict=True):
        table.add_row(*row, style=_STYLES.get(str(source.get(state))))
    Console(markup=False, highlight=False).print(table)


def print_notes(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what is odd about plugins, and no error, a line each."""
    for row in rows:
        for note in row.get("notes", ()):
            print(f"note: {row['distribution']}:{row['name']} ({row['point']}): {note}")


def aligned(rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return each row as a line in which every column begins at one place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def cell(value: object) -> str:
    """Write a value so that it stays in its cell."""
    if value is None:
        return ""
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    if not text.isprintable():  # what a plugin says must not steer the terminal, nor look like another row
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
