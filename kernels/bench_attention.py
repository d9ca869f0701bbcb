"""Paged attention beside the ceilings of this machine: how near a layer's call comes to what nothing can pass.

Two ceilings are measured in the same run, by all threads: multiply-adds from registers (of float32: half of what a
path's instructions do with whole numbers of 16 bits, since a register holds half as many) and memory read in order.
A call cannot take less time than the larger of its multiply-adds by the one and the bytes of the keys and values
that it sees, each once, by the other; the table says which, the rate, and the share of the ceiling that it is.
Exponentials, rotation and the conversion of 16-bit numbers are not in the ceiling; blocks lie in any order, which
memory serves more slowly than it is read in order.

    python kernels/bench.py attention                         # the layer of the demo model, every path and format
    python kernels/bench.py attention --paths avx2 --formats bf16 --decode 8x1000 --chunks 4x1500 --json result.json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import mmap
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bench_linear import COLD_BYTES, PATHS, Ceiling, available_paths, best_seconds, conclude, measure_ceiling
from graftlm_kernels import _native
from graftlm_kernels.native import DTYPE_CODES

FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
#: Requests with one query each x tokens of context.
DECODE = tuple(f"{rows}x{context}" for rows in (1, 8, 32) for context in (100, 1000, 2000, 8000))
#: Queries of one request x tokens computed before them.
CHUNKS = tuple(f"{queries}x{context}" for queries in (4, 16, 64, 512) for context in (0, 512, 1500))
MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A layer's heads and the cache's blocks; at first those of SmolLM2-135M and of the engine."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int

    def block_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.num_kv_heads * self.block_size * self.head_size * dtype.itemsize


class Step:
    """One layer's call for requests of (computed tokens, queries) each, over caches that take turns."""

    def __init__(self, geometry: Geometry, dtype: torch.dtype, requests: list[tuple[int, int]]) -> None:
        self.geometry, self.dtype, self.requests, self.turn = geometry, dtype, requests, 0
        lengths = [past + queries for past, queries in requests]
        needed = [-(-length // geometry.block_size) for length in lengths]
        blocks = list(range(sum(needed)))
        random.Random(0).shuffle(blocks)
        self.table = torch.zeros(len(requests), max(needed), dtype=torch.int32)
        for row, count in enumerate(needed):
            self.table[row, :count] = torch.tensor([blocks.pop() for _ in range(count)])
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        counts = torch.tensor([0] + [queries for _, queries in requests])
        self.query_start = counts.cumsum(0).to(torch.int32)
        self.query = torch.randn(int(counts.sum()), geometry.num_heads, geometry.head_size)
        self.output = torch.empty_like(self.query)
        size = sum(needed) * geometry.block_bytes(dtype)
        shape = (sum(needed), 2, geometry.num_kv_heads, geometry.block_size, geometry.head_size)
        self.caches = [_memory(size, dtype).view(shape) for _ in range(max(1, min(COLD_BYTES // size, 256)))]
        scale = geometry.head_size**-0.5
        self.layer = _native.AttentionLayer(geometry.num_heads, geometry.num_kv_heads, geometry.head_size, scale)

    @property
    def num_bytes(self) -> int:
        """Of the keys and values that the step sees."""
        geometry = self.geometry
        return int(self.seq_lens.sum()) * geometry.block_bytes(self.dtype) // geometry.block_size

    @property
    def products(self) -> int:
        seen = sum(queries * past + queries * (queries + 1) // 2 for past, queries in self.requests)
        return 2 * seen * self.geometry.num_heads * self.geometry.head_size

    def __call__(self) -> None:
        self.turn = (self.turn + 1) % len(self.caches)
        query, output, table, cache = self.query, self.output, self.table, self.caches[self.turn]
        self.layer.attend(
            cache.data_ptr(), DTYPE_CODES[cache.dtype], self.geometry.block_size, query.data_ptr(), query.stride(0),
            output.data_ptr(), output.stride(0), DTYPE_CODES[query.dtype], len(self.requests),
            self.query_start.data_ptr(), self.seq_lens.data_ptr(), table.data_ptr(), table.stride(0), 0,
        )  # fmt: skip


def _memory(num_bytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random numbers in small pages, as the engine's cache has them."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a system without huge pages has none to decline
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    numbers = torch.frombuffer(memory, dtype=dtype)
    piece = torch.randn(min(len(numbers), 1 << 18)).to(dtype)
    for part in numbers.split(len(piece)):
        part.copy_(piece[: len(part)])
    return numbers


def steps(args: argparse.Namespace) -> Iterator[tuple[str, str, list[tuple[int, int]]]]:
    """Name every step that is asked for: its kind, its size, its requests as (computed tokens, queries)."""
    for size in args.decode:
        rows, context = (int(number) for number in size.split("x"))
        yield "decode", size, [(context - 1, 1)] * rows
    for size in args.chunks:
        queries, context = (int(number) for number in size.split("x"))
        yield "chunk", size, [(context, queries)]


def rows_of_table(args: argparse.Namespace, ceilings: dict[str, Ceiling]) -> Iterator[dict[str, Any]]:
    """Measure every step over every format of the cache on every path; the paths take turns with each step."""
    geometry = Geometry(args.heads, args.kv_heads, args.head_size, args.block_size)
    for format in args.formats:
        for kind, size, requests in steps(args):
            step = Step(geometry, FORMATS[format], requests)
            if step.num_bytes * len(step.caches) > MOST_BYTES:
                continue
            for path in args.paths:
                _native.use_path(path)
                step()
                seconds = best_seconds(step, budget_s=args.budget_s)
                ceiling = ceilings[path]
                yield {
                    "kind": kind, "size": size, "format": format, "path": path, "microseconds": seconds * 1e6,
                    "gop_per_s": 2e-9 * step.products / seconds, "gb_per_s": 1e-9 * step.num_bytes / seconds,
                    "bound": "memory" if ceiling.is_memory(step.products, step.num_bytes) else "products",
                    "share": ceiling.seconds(step.products, step.num_bytes) / seconds,
                }  # fmt: skip


def measure_ceilings(args: argparse.Namespace) -> dict[str, Ceiling]:
    found = {}
    for path in args.paths:
        _native.use_path(path)
        whole = measure_ceiling(wide=True, budget_s=2 * args.budget_s)
        found[path] = Ceiling(whole.products / 2, whole.bytes)
    memory = max(ceiling.bytes for ceiling in found.values())  # it is the machine's, not the path's
    return {path: Ceiling(ceiling.products, memory) for path, ceiling in found.items()}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.py attention", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", nargs="*", default=available_paths(), choices=PATHS)
    parser.add_argument("--formats", nargs="*", default=[*FORMATS], choices=[*FORMATS])
    parser.add_argument("--decode", nargs="*", default=DECODE, metavar="ROWSxCONTEXT")
    parser.add_argument("--chunks", nargs="*", default=CHUNKS, metavar="QUERIESxCONTEXT")
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--budget-s", type=float, default=0.1, help="Seconds of each measurement.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write everything as JSON, too.")
    args = parser.parse_args(argv)
    _native.set_num_threads(args.threads)
    ceilings = measure_ceilings(args)
    print(f"{args.threads} threads; Gop/s count a multiply-add as two; least time of each call")
    heads = ("step", "rows x context", "cache", "path", "us", "Gop/s", "GB/s", "bound", "of ceiling")
    print("{:>7} {:>15} {:>6} {:>8} {:>10} {:>8} {:>7} {:>9} {:>11}".format(*heads))
    found = []
    for row in rows_of_table(args, ceilings):
        found.append(row)
        print(
            f"{row['kind']:>7} {row['size']:>15} {row['format']:>6} {row['path']:>8} {row['microseconds']:>10.1f} "
            f"{row['gop_per_s']:>8.1f} {row['gb_per_s']:>7.2f} {row['bound']:>9} {row['share']:>10.0%}",
            flush=True,
        )
    named = [
        {"path": path, "gop_per_s": 2e-9 * c.products, "gb_per_s": 1e-9 * c.bytes} for path, c in ceilings.items()
    ]
    for one in named:
        print(f"ceiling {one['path']:>8}: {one['gop_per_s']:.0f} Gop/s, {one['gb_per_s']:.1f} GB/s")
    conclude(found, named, args)
