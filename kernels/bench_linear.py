"""Integer matrices beside the ceilings of this machine: how near each kernel comes to what nothing can pass.

Two ceilings are measured in the same run, by all threads: multiply-adds from registers with the instructions that
the kernels use, and memory read in order. A call cannot take less time than the larger of its multiply-adds by the
one and its weights' bytes by the other; the table says which, the rate, and the share of the ceiling that it is.
What a call without rows takes is Python's, which kept steps do not pay; it is taken off. Last comes the share of
all layers together, each as often as the demo model has it.

    python kernels/bench.py linear                            # the layers of the demo model, every path and format
    python kernels/bench.py linear --paths avx2 --rows 1 32 --shapes 8192x2048 --json result.json
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from graftlm_kernels import _native
from graftlm_kernels.native import BLOCK_COLUMNS, BLOCK_FORMATS, PackedWeight

PATHS = ("generic", "avx2", "avx512")
#: The layers of SmolLM2-135M, outputs x inputs, and how many there are.
LAYERS = {"960x576": 30, "576x576": 30, "3072x576": 30, "576x1536": 30, "49152x576": 1}
SHAPES = tuple(LAYERS)
ROWS = (1, 8, 32, 128, 512)
#: Copies of a matrix take turns until they are larger than any cache, as the layers of a model are.
COLD_BYTES = 160 << 20
PIECE_BYTES = 2 << 20
#: Seconds that this clock can tell apart.
CLOCK_STEP = time.get_clock_info("perf_counter").resolution


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """Rates that nothing on this machine can pass: multiply-adds per second, and bytes per second."""

    products: float
    bytes: float

    def seconds(self, products: int, num_bytes: int) -> float:
        return max(products / self.products, num_bytes / self.bytes)

    def is_memory(self, products: int, num_bytes: int) -> bool:
        return num_bytes / self.bytes > products / self.products


def best_seconds(call: Callable[[], Any], *, budget_s: float, least: int = 5) -> float:
    """Return the shortest of many calls: what others do on the machine only ever adds to it."""
    best, done, end = float("inf"), 0, time.perf_counter() + budget_s
    while done < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        best, done = min(best, time.perf_counter() - begin), done + 1
    return best


def measure_ceiling(*, wide: bool, budget_s: float) -> Ceiling:
    """Measure the path that runs now; a ceiling is the best that was ever seen.

    In pieces as short as a kernel's calls, since others interrupt few of them, and in longer ones, where a thread
    that is still waking up matters less.
    """
    rounds = 1 << 10
    while best_seconds(functools.partial(_native.peak, wide, rounds), budget_s=0) < 2e-4:
        rounds *= 2
    region = mmap.mmap(-1, COLD_BYTES)
    region.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))  # as weights lie
    memory = torch.frombuffer(region, dtype=torch.uint8).fill_(1)
    start = memory.data_ptr()
    products = num_bytes = 0.0
    for size in (1, 4, 16):
        work, piece = _native.peak(wide, size * rounds), size * PIECE_BYTES
        places = itertools.cycle(range(start, start + COLD_BYTES - piece + 1, piece))
        seconds = best_seconds(lambda size=size: _native.peak(wide, size * rounds), budget_s=budget_s)
        read = best_seconds(
            lambda places=places, piece=piece: _native.read_through(next(places), piece), budget_s=budget_s
        )
        products, num_bytes = max(products, work / seconds), max(num_bytes, piece / read)
    return Ceiling(products, num_bytes)


def make_matrices(format: str, outputs: int, inputs: int) -> list[PackedWeight]:
    """Pack copies of one random matrix, enough of them to be cold when their turn comes."""
    code, block_bytes = BLOCK_FORMATS[format]
    blocks = torch.randint(0, 256, (outputs * inputs // BLOCK_COLUMNS, block_bytes), dtype=torch.uint8)
    for place in range(0, 4 if format == "Q4_1" else 2, 2):  # scales, and minima, as a file has them: all finite
        blocks[:, place : place + 2] = torch.full((len(blocks), 1), 0.01, dtype=torch.float16).view(torch.uint8)
    rows = blocks.view(outputs, -1)
    count = min(max(1, COLD_BYTES // rows.numel()), 1024)
    matrices = [PackedWeight(code, output_size=outputs, input_size=inputs) for _ in range(count)]
    for matrix in matrices:
        matrix.load(rows, offset=0)
    return matrices


def rows_of_table(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure every shape in every format on every path, with as many rows as asked for."""
    for shape in args.shapes:
        outputs, inputs = (int(size) for size in shape.split("x"))
        for format in args.formats:
            matrices = make_matrices(format, outputs, inputs)
            for path in args.paths:
                _native.use_path(path)
                for bits in (16, 8) if format != "Q8_0" else (16,):
                    if bits in args.activations:
                        yield from measure(args, matrices, {"path": path, "format": format, "activations": bits})


def measure(
    args: argparse.Namespace, matrices: list[PackedWeight], facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    first, wide = matrices[0], facts["activations"] == 16
    ceiling = ceiling_of(facts["path"], wide, args.budget_s)
    for matrix in matrices:
        matrix.matrix.set_wide(wide)
    for count in args.rows:
        x, y = torch.randn(count, first.input_size), torch.empty(count, first.output_size)
        turn = 0

        def call(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            nonlocal turn
            turn = (turn + 1) % len(matrices)
            matrices[turn].multiply_into(x, None, y, y.data_ptr(), y.size(1))

        call()
        none = functools.partial(call, x[:0], y[:0])
        taken, python = best_seconds(call, budget_s=args.budget_s), best_seconds(none, budget_s=0.2 * args.budget_s)
        # The few rows of a tiny matrix can take less than the clock's noise, hence not more than no row.
        seconds = max(taken - python, CLOCK_STEP)
        products = count * first.output_size * first.input_size
        yield {
            **facts, "outputs": first.output_size, "inputs": first.input_size, "rows": count,
            "microseconds": seconds * 1e6, "gop_per_s": 2e-9 * products / seconds,
            "gb_per_s": 1e-9 * first.num_bytes / seconds,
            "bound": "memory" if ceiling.is_memory(products, first.num_bytes) else "products",
            "share": ceiling.seconds(products, first.num_bytes) / seconds,
        }  # fmt: skip


_ceilings: dict[tuple[str, bool], Ceiling] = {}


def ceiling_of(path: str, wide: bool, budget_s: float) -> Ceiling:
    """Return what was measured for a path, once a run."""
    if (path, wide) not in _ceilings:
        _ceilings[path, wide] = measure_ceiling(wide=wide, budget_s=2 * budget_s)
    return _ceilings[path, wide]


def processor() -> str:
    """Name this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def available_paths() -> list[str]:
    found = []
    for path in PATHS:
        try:
            _native.use_path(path)
        except RuntimeError:
            continue
        found.append(path)
    return found


def whole_models(found: list[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Return the share of all layers together, by format, path, width and rows; only where all were measured."""
    best: collections.Counter[tuple[Any, ...]] = collections.Counter()
    took: collections.Counter[tuple[Any, ...]] = collections.Counter()
    shapes: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for row in found:
        facts = (row["format"], row["path"], row["activations"], row["rows"])
        count = LAYERS.get(f"{row['outputs']}x{row['inputs']}", 0)
        took[facts] += count * row["microseconds"]
        best[facts] += count * row["microseconds"] * row["share"]
        shapes[facts] += count > 0
    return {facts: best[facts] / took[facts] for facts in took if shapes[facts] == len(LAYERS)}


def conclude(found: list[dict[str, Any]], ceilings: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Say how many calls stay under their ceilings, and the share of a whole model; write all to `args.json`."""
    under = sum(row["share"] < 0.6 for row in found)
    print(f"{under} of {len(found)} under 60 % of their ceiling")
    for facts, share in whole_models(found).items():
        print("all layers of the demo: {:>6} {:>8} {:>2} bits, rows {:>3}".format(*facts) + f" {share:>10.0%}")
    if args.json:
        facts = {
            "threads": args.threads,
            "cpu": processor(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
        }
        args.json.write_text(json.dumps({**facts, "ceilings": ceilings, "calls": found}, indent=1))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.py linear", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", nargs="*", default=available_paths(), choices=PATHS)
    parser.add_argument("--formats", nargs="*", default=[*BLOCK_FORMATS], choices=[*BLOCK_FORMATS])
    parser.add_argument("--activations", nargs="*", type=int, default=[16, 8], choices=[16, 8], metavar="BITS")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, metavar="OUTPUTSxINPUTS")
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--budget-s", type=float, default=0.1, help="Seconds of each measurement.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write everything as JSON, too.")
    args = parser.parse_args(argv)
    _native.set_num_threads(args.threads)
    print(f"{args.threads} threads; Gop/s count a multiply-add as two; least time of each call")
    heads = ("outputs x inputs", "format", "path", "act", "rows", "us", "Gop/s", "GB/s", "bound", "of ceiling")
    print("{:>16} {:>6} {:>8} {:>4} {:>5} {:>10} {:>8} {:>7} {:>9} {:>11}".format(*heads))
    found = []
    for row in rows_of_table(args):
        found.append(row)
        print(
            f"{row['outputs']:>8} x {row['inputs']:<5} {row['format']:>6} {row['path']:>8} {row['activations']:>4} "
            f"{row['rows']:>5} {row['microseconds']:>10.1f} {row['gop_per_s']:>8.1f} {row['gb_per_s']:>7.2f} "
            f"{row['bound']:>9} {row['share']:>10.0%}",
            flush=True,
        )
    ceilings = [
        {"path": path, "activations": 16 if wide else 8, "gop_per_s": 2e-9 * c.products, "gb_per_s": 1e-9 * c.bytes}
        for (path, wide), c in _ceilings.items()
    ]
    for one in ceilings:
        print(
            f"ceiling {one['path']:>8}, activations in {one['activations']:>2} bits: {one['gop_per_s']:.0f} Gop/s, "
            f"{one['gb_per_s']:.1f} GB/s"
        )
    conclude(found, ceilings, args)
