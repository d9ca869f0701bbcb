"""Numbers out of exchanges: percentiles of each latency, throughput, goodput; neither prints nor measures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from graftlm.cli.bench.client import Exchange
from graftlm.config.errors import InvalidOption

#: Name → what it is called in tables.
METRICS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token (without the first)",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}

#: What a request can be held to: one number each.
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by linear interpolation, as numpy does by default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation and the percentiles; empty without values."""
    if not values:
        return {}
    named = {f"p{percent:g}": percentile(values, percent) for percent in percentiles}
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "std": statistics.pstdev(values),
        **named,
    }


def values_ms(exchanges: Sequence[Exchange]) -> dict[str, list[float]]:
    """Return every latency of every exchange, in milliseconds, by metric."""
    return {
        "ttft": [1e3 * e.time_to_first_token_s for e in exchanges],
        "tpot": [1e3 * t for e in exchanges if (t := e.time_per_output_token_s) is not None],
        "itl": [1e3 * t for e in exchanges for t in e.inter_token_latencies_s],
        "e2el": [1e3 * e.e2e_latency_s for e in exchanges],
    }


def summarize(
    exchanges: Sequence[Exchange], *, duration_s: float, percentiles: Sequence[float], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Return the summary of a load; failed exchanges are counted and left out of everything else."""
    good = [e for e in exchanges if e.error is None]
    errors = [e.error for e in exchanges if e.error is not None]
    prompt_tokens = sum(e.num_prompt_tokens or 0 for e in good)
    output_tokens = sum(e.output_tokens for e in good)
    summary: dict[str, Any] = {
        "num_requests": len(exchanges),
        "num_completed": len(good),
        "num_failed": len(errors),
        "errors": list(dict.fromkeys(errors))[:5],
        "duration_s": duration_s,
        "num_without_usage": sum(e.num_prompt_tokens is None for e in good),
        "prompt_tokens": prompt_tokens,
        "cached_prompt_tokens": sum(e.num_cached_tokens for e in good),
        "output_tokens": output_tokens,
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": output_tokens / duration_s,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / duration_s,
        "max_concurrency_seen": most_at_once(exchanges),
    }
    for metric, values in values_ms(good).items():
        summary[f"{metric}_ms"] = spread(values, percentiles)
    if limits:
        kept = sum(keeps(e, limits) for e in good)
        summary["goodput"] = {
            "limits_ms": dict(limits),
            "num_kept": kept,
            "requests_per_s": kept / duration_s,
            "share": kept / len(exchanges) if exchanges else 0.0,
        }
    return summary


def keeps(exchange: Exchange, limits_ms: Mapping[str, float]) -> bool:
    """Tell whether an exchange kept every limit; one token alone has no TPOT to break."""
    seen = {
        "ttft": exchange.time_to_first_token_s,
        "tpot": exchange.time_per_output_token_s or 0.0,
        "e2el": exchange.e2e_latency_s,
    }
    return all(1e3 * seen[metric] <= limit for metric, limit in limits_ms.items())


def most_at_once(exchanges: Sequence[Exchange]) -> int:
    """Return how many exchanges were under way at the same time."""
    changes = sorted([(e.end, -1) for e in exchanges] + [(e.start, 1) for e in exchanges])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def parse_limits(words: Sequence[str]) -> dict[str, float]:
    """Read limits written as ttft:500, in milliseconds."""
    limits: dict[str, float] = {}
    for word in words:
        metric, _, text = word.partition(":")
        try:
            limits[metric] = float(text)
        except ValueError:
            metric = ""
        if metric not in GOODPUT_METRICS or not limits[metric] > 0:
            cure = f"write METRIC:MILLISECONDS with one of {', '.join(GOODPUT_METRICS)}, such as ttft:500"
            raise InvalidOption("--goodput", word, problem="it is no limit", cure=cure)
    return limits


def parse_percentiles(text: str) -> list[float]:
    """Read a list such as 50,90,99.9."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= percent <= 100 for percent in found):
        cure = "write numbers from 0 to 100 with commas, such as 50,90,99"
        raise InvalidOption("--metric-percentiles", text, problem="these are no percentiles", cure=cure)
    return found
