"""Batches for attention backends, and what they must answer: naive attention, one query at a time.

It knows no backend's cache layout: keys and values are written through the backend.
"""

from __future__ import annotations

import dataclasses
import random

import torch

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata
from graftlm.contracts.platform import AttentionQuestion


@dataclasses.dataclass(slots=True)
class StepTensors:
    """What a backend gets for one step of a case."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    metadata: AttentionMetadata


@dataclasses.dataclass
class AttentionCase:
    """Requests as (computed tokens, queries), with random keys and values for every token of each.

    Block tables are shuffled and leave blocks free; those hold other requests' stale numbers.
    """

    requests: list[tuple[int, int]]
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        rng = random.Random(self.seed)
        lengths = [past + queries for past, queries in self.requests]
        needed = [-(-length // self.block_size) for length in lengths]
        self.num_blocks = sum(needed) + 3
        free = list(range(self.num_blocks))
        rng.shuffle(free)
        self.tables = [[free.pop() for _ in range(n)] for n in needed]
        self.free_blocks = free

        def numbers(tokens: int, heads: int) -> torch.Tensor:
            return torch.randn(tokens, heads, self.head_size, generator=generator)

        self.keys = [numbers(length, self.num_kv_heads) for length in lengths]
        self.values = [numbers(length, self.num_kv_heads) for length in lengths]
        self.queries = [numbers(queries, self.num_heads) for _, queries in self.requests]

    @property
    def scale(self) -> float:
        return float(self.head_size**-0.5)

    @property
    def label(self) -> str:
        return (
            f"requests (computed, queries) {self.requests}, {self.num_heads} heads over {self.num_kv_heads} of "
            f"{self.head_size}, blocks of {self.block_size}"
        )

    def question(self, dtype: torch.dtype = torch.float32) -> AttentionQuestion:
        """What a layer of this geometry asks."""
        name = str(dtype).removeprefix("torch.")
        return AttentionQuestion(
            num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_size=self.head_size, dtype=name,
            kv_cache_dtype=name, block_size=self.block_size,
        )  # fmt: skip

    def slots(self, request: int, start: int, stop: int) -> list[int]:
        table, size = self.tables[request], self.block_size
        return [table[place // size] * size + place % size for place in range(start, stop)]

    def metadata(self, queries: list[int], ends: list[int], slots: list[int]) -> AttentionMetadata:
        width = max([len(table) for table in self.tables], default=0)
        padded = [table + [0] * (width - len(table)) for table in self.tables]
        start = [0]
        for count in queries:
            start.append(start[-1] + count)
        return AttentionMetadata(
            num_requests=len(queries),
            num_tokens=start[-1],
            max_query_len=max(queries, default=0),
            max_seq_len=max(ends, default=0),
            query_start=torch.tensor(start, dtype=torch.int32, device=self.device),
            seq_lens=torch.tensor(ends, dtype=torch.int32, device=self.device),
            block_table=torch.tensor(padded, dtype=torch.int32, device=self.device).reshape(len(queries), width),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=self.device),
            query_lens_list=queries,
            seq_lens_list=ends,
        )

    def step(self, spans: list[tuple[int, int]], dtype: torch.dtype = torch.float32) -> StepTensors:
        """Return what computes tokens `start:stop` of each request, all in one call."""
        slots = [slot for r, span in enumerate(spans) for slot in self.slots(r, *span)]
        metadata = self.metadata([b - a for a, b in spans], [b for _, b in spans], slots)
        key = self._joined(self.keys, spans, self.num_kv_heads).to(self.device, dtype)
        value = self._joined(self.values, spans, self.num_kv_heads).to(self.device, dtype)
        query = torch.cat([*self.queries, torch.empty(0, self.num_heads, self.head_size)]).to(self.device, dtype)
        return StepTensors(query, key, value, metadata)

    def past(self) -> list[tuple[int, int]]:
        return [(0, past) for past, _ in self.requests]

    def now(self) -> list[tuple[int, int]]:
        return [(past, past + count) for past, count in self.requests]

    def build(self, backend_cls: type[AttentionBackend]) -> AttentionBackend:
        return backend_cls(
            num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_size=self.head_size, scale=self.scale
        )

    def cache(self, backend_cls: type[AttentionBackend], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = backend_cls.kv_cache_shape(self.num_blocks, self.block_size, self.num_kv_heads, self.head_size)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def fill(
        self, backend: AttentionBackend, kv_cache: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> StepTensors:
        """Write stale numbers into the free blocks, then the computed tokens, then this step's; return the step."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        stale = [block * self.block_size + i for block in self.free_blocks for i in range(self.block_size)]
        shape = (len(stale), self.num_kv_heads, self.head_size)
        noise = (torch.randn(shape, generator=generator) * 9).to(self.device, dtype)
        tables, self.tables = self.tables, [self.free_blocks]
        metadata = self.metadata([len(stale)], [len(stale)], stale)
        self.tables = tables
        self._write(backend, StepTensors(noise, noise, noise, metadata), kv_cache)
        self._write(backend, self.step(self.past(), dtype), kv_cache)
        step = self.step(self.now(), dtype)
        self._write(backend, step, kv_cache)
        return step

    def run(self, backend_cls: type[AttentionBackend], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Write the computed tokens, then compute this step's, all requests in one call."""
        kv_cache = self.cache(backend_cls, dtype)
        backend = self.build(backend_cls)
        step = self.fill(backend, kv_cache, dtype)
        return backend.attend(step.query, kv_cache, step.metadata)

    def expected(self) -> torch.Tensor:
        """One query at a time, in float32: [tokens, heads, head_size]."""
        rows = [torch.empty(0, self.num_heads, self.head_size)]
        for (past, count), query, key, value in zip(
            self.requests, self.queries, self.keys, self.values, strict=True
        ):
            groups = self.num_heads // self.num_kv_heads
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            for i in range(count):
                seen = past + i + 1
                scores = torch.einsum("hd,khd->hk", query[i], key[:seen]) * self.scale
                rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), value[:seen])[None])
        return torch.cat(rows)

    def _joined(self, parts: list[torch.Tensor], spans: list[tuple[int, int]], heads: int) -> torch.Tensor:
        cut = [part[a:b] for part, (a, b) in zip(parts, spans, strict=True)]
        return torch.cat([*cut, torch.empty(0, heads, self.head_size)])

    @staticmethod
    def _write(backend: AttentionBackend, step: StepTensors, kv_cache: torch.Tensor) -> None:
        type(backend).build_metadata(step.metadata)
        backend.write_cache(step.key, step.value, kv_cache, step.metadata)


def generated_cases(*, block_sizes: tuple[int, ...], device: str = "cpu") -> list[AttentionCase]:
    """Return batches of every kind: decode, prefill, chunks, mixes, grouped heads, odd sizes, none at all."""
    kinds: list[list[tuple[int, int]]] = [
        [(0, 1)],
        [(17, 1), (0, 1), (40, 1), (16, 1), (15, 1)],
        [(0, 33)],
        [(0, 5), (0, 16), (0, 17)],
        [(20, 9), (64, 3)],
        [(5, 1), (0, 33), (130, 1), (40, 9), (6, 1)],
        [(250, 1), (3, 1)],
        [],
    ]
    shapes = [(4, 4, 16), (6, 2, 64), (8, 1, 32), (9, 3, 64), (4, 2, 20), (32, 8, 128)]
    cases = []
    for i, block_size in enumerate(block_sizes):
        for j, requests in enumerate(kinds):
            heads, kv_heads, head_size = shapes[(i + j) % len(shapes)]
            cases.append(AttentionCase(requests, heads, kv_heads, head_size, block_size, 10 * i + j, device))
    return cases
