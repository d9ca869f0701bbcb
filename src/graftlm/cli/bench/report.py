"""Shows what was measured as a table, and keeps it as JSON with machine, versions and date; measures nothing."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graftlm.cli.machine import machine_facts
from graftlm.version import __version__


def stamp(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every result begins with."""
    return {
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": machine_facts()["cpu"] or platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "versions": {"graftlm": __version__, "python": platform.python_version()},
        "settings": dict(settings),
    }


def write_json(result: Mapping[str, Any], path: str | None) -> None:
    """Write the result where it was asked for; - is standard output."""
    if path is None:
        return
    text = json.dumps(result, indent=1, ensure_ascii=False)
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")


def print_rows(title: str, rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Print aligned columns: the first and those of words to the left, numbers to the right."""
    body = [list(row) for row in rows]
    lines = [list(header), *body] if header else body
    widths = [max(len(row[i]) for row in lines if i < len(row)) for i in range(max(map(len, lines)))]
    numeric = [i > 0 and any(i < len(row) and row[i][:1].isdigit() for row in body) for i in range(len(widths))]
    print(title)
    for row in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=False)
        ]
        print("  " + "  ".join(cells).rstrip())


def number(value: float) -> str:
    """Write a number with four significant digits and no exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value >= 0.001 else f"{value:.2g}"


class Progress:
    """A bar on a terminal; silent elsewhere, or where nobody wants it."""

    def __init__(self, total: int, text: str, *, show: bool) -> None:
        self._bar: Any = None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(text, total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)
