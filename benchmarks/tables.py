"""Shows results as a Markdown table of medians and ratios with their spread, and puts it into a page.

It measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds import Results
from graftlm.cli.bench import report
from graftlm.contracts.errors import GraftlmError
from graftlm.models.cache_folder import replace_file
from graftlm.plugins.spelling import counted


def with_spread(values: Sequence[float]) -> str:
    """Write a median with its range: `158 (157…160)`."""
    text = short(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({short(min(values))}…{short(max(values))})"


def ratio(values: Sequence[float]) -> str:
    """Write a ratio with its range: `3.9 × (3.8…4.1)`."""
    text = (
        f"{statistics.median(values):.2g} ×"
        if statistics.median(values) < 10
        else f"{statistics.median(values):.0f} ×"
    )
    return text if len(values) == 1 else f"{text} ({min(values):.3g}…{max(values):.3g})"


def short(value: float) -> str:
    """Write three significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def comparison(results: Results, *, ours: str) -> str:
    """Return the table: a column for us, and for each other peer its figures and how many times better ours are."""
    others = [name for name in results.figures if name != ours]
    head = ["", ours, *(text for name in others for text in (name, f"{ours} is better by"))]
    rows = []
    for figure in results.all_figures():
        cells = [figure.title, _cell(results, ours, figure)]
        for name in others:
            both = results.ratios(ours, name, figure)
            cells += [_cell(results, name, figure), ratio(both) if both else ""]
        rows.append(cells)
    return markdown(head, rows)


def _cell(results: Results, peer: str, figure: Any) -> str:
    if values := results.values(peer, figure):
        return with_spread(values)
    return "failed" if results.failures[peer] else ""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table that is aligned for those who read it as text."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def page(result: Mapping[str, Any], table: str, failures: Mapping[str, Mapping[str, str]]) -> str:
    """Return what is written into the page: where and how it was measured, the table, who failed."""
    machine, settings = result["machine"], result["settings"]
    lines = [
        f"{result['date'][:10]}, {machine['processor']}, {counted(settings['threads'], 'thread')}, load average "
        f"{machine['load_before']} before the run. Rounds: {settings['rounds']}. Medians (min…max); ratios are "
        "those within a round.",
        "",
        table,
        "",
        *(f"- {name} {peer['version']}: `{peer['settings']}`" for name, peer in result["peers"].items()),
    ]
    for name, rows in failures.items():
        for row, words in rows.items():
            lines.append(f"- {name} failed at {row!r}: {last_line(words)}")
    return "\n".join(lines)


def last_line(words: str) -> str:
    """Return the last of a failure's words, as text that breaks no Markdown."""
    return words.strip().splitlines()[-1].strip()[-300:].replace("`", "'").replace("|", "/")


def read_around(path: Path, name: str) -> tuple[str, str]:
    """Return a page up to `<!-- measured: NAME -->`, and from its `<!-- end -->`; raises GraftlmError."""
    try:
        before, begin, rest = path.read_text(encoding="utf-8").partition(f"<!-- measured: {name} -->\n")
    except OSError as error:
        raise GraftlmError(f"{path} cannot be read ({error.strerror}); name a page that is there") from None
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise GraftlmError(f"{path} has no <!-- measured: {name} --> with an <!-- end -->; add the two lines")
    return before + begin, end + after


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what lies between the two marks of a page, in one step."""
    before, after = read_around(path, name)
    replace_file(path.resolve(), f"{before}\n{text}\n\n{after}")


def as_json(results: Results, *, ours: str) -> dict[str, Any]:
    """Return every figure of every round, and every ratio."""
    return {
        "figures": {
            peer: {figure.title: values for figure, values in rows.items()}
            for peer, rows in results.figures.items()
        },
        "better_by": {
            other: {figure.title: results.ratios(ours, other, figure) for figure in rows}
            for other, rows in results.figures.items()
            if other != ours
        },
        "more_is_better": [figure.title for figure in results.all_figures() if figure.more_is_better],
        "failures": results.failures,
    }


def print_and_keep(result: Mapping[str, Any], text: str, json_file: str | None) -> None:
    """Show the text, then write the JSON: what cannot be written takes nothing away. With --json=- only that."""
    if json_file != "-":
        print(text, flush=True)
    report.write_json(result, json_file)
