"""A naive paged attention, one query at a time, and batches to compare with it; knows no backend's layout."""

from __future__ import annotations

import dataclasses
import random

import torch

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata


@dataclasses.dataclass
class Case:
    """Requests as (computed tokens, queries), with random keys and values for every token of each."""

    requests: list[tuple[int, int]]
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        rng = random.Random(self.seed)
        lengths = [past + queries for past, queries in self.requests]
        needed = [-(-length // self.block_size) for length in lengths]
        self.num_blocks = sum(needed) + 3
        free = list(range(self.num_blocks))
        rng.shuffle(free)
        self.tables = [[free.pop() for _ in range(n)] for n in needed]
        self.keys = [torch.randn(length, self.num_kv_heads, self.head_size) for length in lengths]
        self.values = [torch.randn(length, self.num_kv_heads, self.head_size) for length in lengths]
        self.queries = [torch.randn(queries, self.num_heads, self.head_size) for _, queries in self.requests]

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
            query_start=torch.tensor(start, dtype=torch.int32),
            seq_lens=torch.tensor(ends, dtype=torch.int32),
            block_table=torch.tensor(padded, dtype=torch.int32).reshape(len(queries), width),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            query_lens_list=queries,
            seq_lens_list=ends,
        )

    def run(self, backend_cls: type[AttentionBackend], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Write the computed tokens, then compute this step's, all requests in one call."""
        shape = backend_cls.kv_cache_shape(self.num_blocks, self.block_size, self.num_kv_heads, self.head_size)
        kv_cache = torch.zeros(shape, dtype=dtype)
        backend = backend_cls(
            num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_size=self.head_size, scale=self.scale
        )
        for now in (False, True):
            spans = [(0, past) if not now else (past, past + count) for past, count in self.requests]
            slots = [slot for r, span in enumerate(spans) for slot in self.slots(r, *span)]
            metadata = self.metadata([b - a for a, b in spans], [b for _, b in spans], slots)
            backend_cls.build_metadata(metadata)
            key = torch.cat([k[a:b] for k, (a, b) in zip(self.keys, spans, strict=True)] or [self.nothing])
            value = torch.cat([v[a:b] for v, (a, b) in zip(self.values, spans, strict=True)] or [self.nothing])
            backend.write_cache(key.to(dtype), value.to(dtype), kv_cache, metadata)
        query = torch.cat(self.queries or [torch.empty(0, self.num_heads, self.head_size)])
        return backend.attend(query.to(dtype), kv_cache, metadata)

    def expected(self) -> torch.Tensor:
        """One query and one head at a time."""
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

    @property
    def scale(self) -> float:
        return self.head_size**-0.5

    @property
    def nothing(self) -> torch.Tensor:
        return torch.empty(0, self.num_kv_heads, self.head_size)
