"""Paged attention as one would explain it on a board: gather each request's keys and values, then attend."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata

if TYPE_CHECKING:
    from graftlm.contracts.platform import AttentionQuestion


class GatherAttention(AttentionBackend):
    """Cache [2, num_blocks, block_size, num_kv_heads, head_size]; a loop over requests, so it wins no race."""

    name: ClassVar[str] = "GATHER"

    @classmethod
    def supported_block_sizes(cls) -> tuple[int, ...]:
        return (16, 32, 64)

    @classmethod
    def supports(cls, question: AttentionQuestion) -> str | None:
        return "it has no sliding window" if question.sliding_window is not None else None

    @classmethod
    def kv_cache_shape(cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_size: int, scale: float, prefix: str = ""
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.scale = scale

    def write_cache(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        for kept, new in zip(kv_cache, (key, value), strict=True):
            kept.flatten(0, 1)[metadata.slot_mapping] = new.to(kept.dtype)  # [slots, num_kv_heads, head_size]

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        block_size = kv_cache.shape[2]
        output = torch.empty_like(query)
        begin = 0
        for request in range(metadata.num_requests):
            queries, keys = metadata.query_lens_list[request], metadata.seq_lens_list[request]
            blocks = metadata.block_table[request, : -(-keys // block_size)]
            key, value = kv_cache[:, blocks].flatten(1, 2)[:, :keys]  # [keys, num_kv_heads, head_size] each
            mixed = self._attend_one(query[begin : begin + queries], key.to(query.dtype), value.to(query.dtype))
            output[begin : begin + queries] = mixed
            begin += queries
        return output

    def _attend_one(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The i-th of n queries stands at place keys - n + i, and sees the keys up to its own."""
        places = torch.arange(key.shape[0], device=query.device)
        seen = places[None, :] <= places[-query.shape[0] :, None]  # [queries, keys]
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), attn_mask=seen, scale=self.scale,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )  # fmt: skip
        return mixed.transpose(0, 1)  # [queries, num_heads, head_size]
