"""Draws the latency distributions of `graftlm bench serve --plot FILE` with matplotlib, which it alone imports.

Each metric has a panel: the bars say where its values lie, the line what share of them is at most so long, and the
median and the tails are named. It computes no statistics of its own.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.cli.bench.report import number
from graftlm.cli.bench.statistics import METRICS, percentile
from graftlm.cli.output_file import check_writable
from graftlm.config.errors import InvalidOption
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

_INK, _FAINT, _GRID = "#1f2933", "#6b7785", "#e8ebef"
_COLOURS = {"ttft": "#2f6db5", "tpot": "#2a9d8f", "itl": "#c8553d", "e2el": "#7d5ba6"}
_MARKED = (50, 90, 99)
_BARS = 40
_TALLEST = 0.62
#: Where the longest value is this many medians, all else would be one bar: the axis becomes logarithmic.
_LONG_TAIL = 8.0
_PANEL_INCHES = (6.2, 3.3)
_TITLE_INCHES = 0.85
_LEFT = 0.62


def check_plot(path: str) -> None:
    """Raise InvalidOption unless a plot can be drawn into this file."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        problem = f"nothing is drawn as {suffix!r}" if suffix else "its name does not say what to draw"
        raise InvalidOption("--plot", path, problem=problem, cure=f"end it in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        cure = "run `pip install 'graftlm[bench]'`, or leave --plot out"
        raise InvalidOption("--plot", path, problem="matplotlib is not installed", cure=cure)
    check_writable("--plot", path)


def write_plot(path: str, result: Mapping[str, Any], values: Mapping[str, Sequence[float]]) -> None:
    """Draw the values, in milliseconds by metric; metrics without any are left out."""
    # Without pyplot there is no state, no window, and no choice of a screen.
    from matplotlib.figure import Figure

    shown = {metric: values[metric] for metric in METRICS if values.get(metric)}
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    width, height = _PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + _TITLE_INCHES
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.subplots_adjust(
        left=_LEFT / width, right=1 - 0.35 / width, bottom=0.65 / height, top=1 - (_TITLE_INCHES + 0.4) / height,
        wspace=0.9 / _PANEL_INCHES[0], hspace=1.0 / (_PANEL_INCHES[1] - 0.9),
    )  # fmt: skip
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, (metric, numbers) in zip(panels, shown.items(), strict=False):
        _draw(panel, METRICS[metric], numbers, colour=_COLOURS[metric])
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    for text, inches, style in zip(_titles(result), (0.18, 0.5), (_TITLE, _DETAILS), strict=True):
        figure.text(_LEFT / width, 1 - inches / height, text, va="top", **style)
    figure.text(_LEFT / width, 0.12 / height, _LEGEND, va="bottom", **_DETAILS)
    figure.savefig(path, dpi=150)


_LEGEND = "line: share of the values that are at most so long   ·   bars: where the values lie"
_TITLE: dict[str, Any] = {"fontsize": 14, "fontweight": "bold", "color": _INK}
_DETAILS: dict[str, Any] = {"fontsize": 9.5, "color": _FAINT}


def _titles(result: Mapping[str, Any]) -> tuple[str, str]:
    settings = result["settings"]
    rate = settings.get("request_rate")
    load = f"{rate:g} requests per second" if rate else f"{result['max_concurrency_seen']} at once"
    parts = [
        f"{counted(result['num_completed'], 'request', form=',')}, {load}",
        f"{number(result['output_tokens_per_s'])} output tokens per second",
        *([f"{result['num_failed']:,} failed"] if result["num_failed"] else []),
        result["machine"]["processor"],
        result["date"][:10],
    ]
    return f"{settings['model']} at {settings['url']}", "   ·   ".join(parts)


def _draw(panel: Axes, title: str, values: Sequence[float], *, colour: str) -> None:
    """Draw one metric: the line's scale is the axis, the bars have none and are as high as looks well."""
    edges, logarithmic = _edges(values)
    if logarithmic:
        panel.set_xscale("log")
    panel.set_xlim(edges[0], edges[-1])
    panel.set_ylim(0, 1.06)
    counts = _counts(values, edges)
    widths = [after - before for before, after in itertools.pairwise(edges)]
    heights = [_TALLEST * count / max(counts) for count in counts]
    panel.bar(edges[:-1], heights, widths, align="edge", color=colour, alpha=0.26, edgecolor="white", linewidth=0.6)
    ordered = sorted(values)
    shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
    panel.step(
        [edges[0], *ordered, edges[-1]], [0.0, *shares, 1.0], where="post", color=colour, linewidth=1.9, zorder=3
    )
    for percent in _MARKED:
        _mark(panel, percent, percentile(values, percent))
    _tidy(panel, title, logarithmic=logarithmic)


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """Count the values between each two edges; all lie between the first and the last."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(bisect.bisect_right(edges, value), len(counts)) - 1] += 1
    return counts


def _edges(values: Sequence[float]) -> tuple[list[float], bool]:
    """Return the bars' edges, and whether they grow by a factor instead of a step."""
    low, high, middle = min(values), max(values), percentile(values, 50)
    if low > 0 and high > _LONG_TAIL * middle:
        low, high = low / 1.15, high * 1.15
        return [low * (high / low) ** (place / _BARS) for place in range(_BARS + 1)], True
    margin = 0.06 * (high - low) or 0.05 * high or 1.0
    low, high = max(0.0, low - margin), high + margin
    return [low + (high - low) * place / _BARS for place in range(_BARS + 1)], False


def _mark(panel: Axes, percent: float, value: float) -> None:
    """Put a dot on the line and say beside it what the percentile is, on the side that has room."""
    across = panel.transAxes.inverted().transform(panel.transData.transform((value, 0)))[0]
    right = across < 0.6
    panel.plot([value], [percent / 100], marker="o", markersize=4.5, color=_INK, zorder=5)
    panel.annotate(
        f"p{percent:g}  {number(value)} ms", (value, percent / 100), textcoords="offset points",
        xytext=(9 if right else -9, -3 if right else 4), ha="left" if right else "right",
        va="top" if right else "bottom", fontsize=8.5, color=_INK, zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1.2},
    )  # fmt: skip


def _tidy(panel: Axes, title: str, *, logarithmic: bool) -> None:
    """Take away whatever says nothing."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    panel.set_title(f"{title}, ms", loc="left", fontsize=11, color=_INK, pad=10)
    if logarithmic:
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panel.set_yticks([0, 0.25, 0.5, 0.75, 1])
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=_FAINT, labelsize=8.5, length=0)
    panel.tick_params(axis="x", which="both", pad=7)
    for name, spine in panel.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_GRID)
