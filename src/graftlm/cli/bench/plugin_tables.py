"""Prints what `graftlm bench plugins` found as tables; measures nothing."""

from __future__ import annotations

from typing import Any

from graftlm.cli.bench import report


def print_result(result: dict[str, Any]) -> None:
    """Print the start, then what was called directly, then what was called under load."""
    _print_start(result["start_ms"], result["idle"])
    if ops := result["ops"]:
        _print_ops(ops)
        _print_attention(ops["attention"])
        _print_quantization(ops["quantization"])
    if serving := result["serving"]:
        _print_serving(serving)


def _print_start(start: dict[str, dict[str, float]], idle: list[str]) -> None:
    processes = list(dict.fromkeys(process for by_process in start.values() for process in by_process))
    by_cost = sorted(start.items(), key=lambda item: -sum(item[1].values()))
    rows = [
        (plugin, *(f"{by_process[p]:.1f}" if p in by_process else "" for p in processes))
        for plugin, by_process in by_cost
    ]
    report.print_rows("milliseconds at start", rows, header=("plugin", *processes))
    others = [name for name in idle if not name.startswith("graftlm:")]
    if others:
        print(f"\nnothing, since they were not needed: {', '.join(others)}")


def _print_ops(ops: dict[str, Any]) -> None:
    print(f"\nnanoseconds of a call through an op object, beside its method alone: {ops['dispatch_ns']:.0f}")
    rows = [
        (f"{row['op']}{'' if row['chosen'] else ' (not chosen)'}", row["method"], row["provider"],
         report.number(row["ns"]), report.number(row["native_ns"]))
        for row in ops["calls"]
    ]  # fmt: skip
    header = ("op", "computed by", "of", "ns per call", "forward_native")
    report.print_rows("\nops on the smallest of their examples", rows, header=header)


def _print_attention(found: list[dict[str, Any]]) -> None:
    rows = [(row["backend"], row["plugin"], row["case"], *_numbers(row, "write_ns", "attend_ns")) for row in found]
    header = ("backend", "of", "case", "write_cache", "attend")
    report.print_rows("\nattention backends on two small cases, ns per call of a layer", rows, header=header)


def _print_quantization(found: list[dict[str, Any]]) -> None:
    rows = [
        (row["method"], row.get("plugin", ""), row.get("case", ""), *_numbers(row, "ns", "plain_ns"))
        for row in found
    ]
    header = ("method", "of", "case", "apply", "torch's linear")
    report.print_rows("\nquantization methods on a small layer, ns per call", rows, header=header)


def _numbers(row: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Return the numbers of a row, or in their place the reason why there are none."""
    if "problem" in row:
        return ("", f"not measured: {row['problem']}")
    return tuple(report.number(row[name]) for name in names)


def _print_serving(serving: dict[str, Any]) -> None:
    clock = max((call["clock_ns"] for call in serving["calls"]), default=0.0)
    rows = [
        (call["plugin"], call["kind"], call["hook"], call["process"], f"{call['calls']:,}",
         report.number(call["median_ns"]), report.number(call["mean_ns"]))
        for call in serving["calls"]
    ]  # fmt: skip
    header = ("plugin", "kind", "hook", "process", "calls", "median", "mean")
    title = f"\ncalls while serving, ns with all that they call; of each, the clock itself is {clock:.0f}"
    if rows:
        report.print_rows(title, rows, header=header)
    else:
        print("\nwhile serving, no plugin but the engine's own was called")
    asked = [
        (row["route"], report.number(row["median_ns"]) if row["problem"] is None else f"failed: {row['problem']}")
        for row in serving["requests"]
    ]
    report.print_rows("\nns of a request, as a client on this machine sees it", asked)
    for row in serving["not_timed"]:
        print(f"\nnot timed: {row['kind']} {row['hook']} of {row['plugin']} in {row['process']}: {row['reason']}")
    if serving["not_called"]:
        report.print_rows("\nnot called while serving", list(serving["not_called"].items()))
