"""Attention backends that are wrong, each in one way that the suite must see."""

from __future__ import annotations

from typing import Any

import torch
from which_process import PROCESS_NUMBER

from graftlm.ops.attention.torch_paged import TorchPagedAttention


class ForgetsTheScale(TorchPagedAttention):
    name = "NO_SCALE"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "scale": 1.0})


class IgnoresTheBlockTable(TorchPagedAttention):
    """Takes it that a request's blocks follow one another."""

    name = "IN_ORDER"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        table, metadata.backend = metadata.block_table, None
        columns = torch.arange(table.shape[1], dtype=table.dtype)
        metadata.block_table = (table[:, :1] + columns) % kv_cache.shape[0] if table.numel() else table
        try:
            return super().attend(query, kv_cache, metadata)
        finally:
            metadata.block_table, metadata.backend = table, None


class SeesTheFuture(TorchPagedAttention):
    """Each query of a prefill sees all of its request's keys."""

    name = "FUTURE"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        rows, start = [query[:0]], 0
        for r, (count, keys) in enumerate(zip(metadata.query_lens_list, metadata.seq_lens_list, strict=True)):
            blocks = metadata.block_table[r].long()
            kv = (
                kv_cache[blocks].transpose(0, 1).transpose(1, 2).flatten(2, 3)[:, :, :keys]
            )  # [2, kv_heads, keys, size]
            kv = kv.repeat_interleave(self.num_heads // self.num_kv_heads, 1).to(query.dtype)
            q = query[start : start + count].transpose(0, 1)  # [heads, queries, size]
            scores = (q @ kv[0].transpose(1, 2) * self.scale).softmax(-1)
            rows.append((scores @ kv[1]).transpose(0, 1))
            start += count
        return torch.cat(rows)


class MixesUpHeads(TorchPagedAttention):
    """Gives query heads to key-value heads in turns, not in groups."""

    name = "TURNS"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        groups = self.num_heads // self.num_kv_heads
        order = torch.arange(self.num_heads).view(groups, self.num_kv_heads).t().flatten()
        found = super().attend(query[:, order], kv_cache, metadata)
        output = torch.empty_like(found)
        output[:, order] = found
        return output


class ScalesTheQueryInPlace(TorchPagedAttention):
    name = "IN_PLACE"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        scale, self.scale = self.scale, 1.0
        try:
            return super().attend(query.mul_(scale), kv_cache, metadata)
        finally:
            self.scale = scale


class RemembersTheLastStep(TorchPagedAttention):
    """Keeps the first step's layout for ever."""

    name = "MEMORY"
    previous: float = 0.0

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        found = super().attend(query, kv_cache, metadata)
        found.add_(1e-6 * self.previous)
        self.previous = float(found.abs().sum()) + 1
        return found


class WritesOneSlotTooFar(TorchPagedAttention):
    name = "TOO_FAR"

    def write_cache(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> None:
        super().write_cache(key, value, kv_cache, metadata)
        kv_cache[:, 1, :, 0] += 1.0


class DiffersBetweenProcesses(TorchPagedAttention):
    name = "PID"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        return super().attend(query, kv_cache, metadata) * (1 + PROCESS_NUMBER / 100)


class FailsWithoutRequests(TorchPagedAttention):
    name = "BUSY_ONLY"

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        query.max()
        return super().attend(query, kv_cache, metadata)


class NamesNoReason(TorchPagedAttention):
    name = "BOOL"

    @classmethod
    def supports(cls, question: Any) -> Any:
        return question.sliding_window is None


class FusesWithoutRotating(TorchPagedAttention):
    """Takes the rotation over and forgets it."""

    name = "FORGETFUL"

    def fuse_rotation(self, rotary_emb: Any) -> bool:
        return True

    def rotate_and_attend(
        self, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, positions: Any
    ) -> Any:
        heads = [x.view(len(x), -1, self.head_size) for x in (query, key, value)]
        self.write_cache(heads[1], heads[2], kv_cache, metadata)
        return self.attend(heads[0], kv_cache, metadata).flatten(1)
