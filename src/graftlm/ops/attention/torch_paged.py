"""Paged attention in plain torch: the reference of every other backend, for any mix of prefill and decode.

It knows nothing of models or schedulers. What depends on the step alone (gather rows, masks) is made once per
step by `paging.py` and shared by all layers. The computations are kernel functions, which a platform may replace.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata
from graftlm.contracts.platform import AttentionQuestion
from graftlm.ops.attention.paging import Paging, Piece
from graftlm.ops.kernel_functions import bind_kernel, overridable


@overridable("paged_attention.write")
def paged_write(
    kv_cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_rows: torch.Tensor, value_rows: torch.Tensor
) -> None:
    """Store key and value [tokens, kv_heads, head_size] in those rows of the cache seen as [rows, head_size]."""
    size = key.shape[-1]
    rows = kv_cache.view(-1, size)  # [blocks * 2 * kv_heads * block_size, head_size]
    rows.index_copy_(0, key_rows, key.reshape(-1, size).to(rows.dtype))
    rows.index_copy_(0, value_rows, value.reshape(-1, size).to(rows.dtype))


@overridable("paged_attention.decode")
def paged_decode(query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """One query per request: query [requests, heads, size], kv [2, requests, kv_heads, keys, size].

    `mask` is `DecodeGroup.mask`; the result has the query's shape.
    """
    _, requests, kv_heads, _, size = kv.shape
    key, value = kv.to(query.dtype).unbind(0)  # [requests, kv_heads, keys, size] each
    queries = query.reshape(requests, kv_heads, -1, size)  # [requests, kv_heads, heads per kv_head, size]
    if query.dtype != torch.float32:
        # Sums of half-precision products need the wider accumulator that this call has.
        mixed = F.scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scale)
        return mixed.reshape(query.shape)
    key, value = key.flatten(0, 1), value.flatten(0, 1)  # [requests * kv_heads, keys, size]
    queries = queries.flatten(0, 1)  # [requests * kv_heads, heads per kv_head, size]
    scores = torch.baddbmm(mask, queries, key.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), value).view(query.shape)


@overridable("paged_attention.prefill")
def paged_prefill(query: torch.Tensor, kv: torch.Tensor, pieces: list[Piece], scale: float) -> torch.Tensor:
    """Equal lengths: query [requests, queries, heads, head_size], kv as in `paged_decode`."""
    queries = query.transpose(1, 2)  # [requests, heads, queries, head_size]
    key, value = kv.to(query.dtype).unbind(0)  # [requests, kv_heads, keys, head_size] each
    grouped = queries.shape[1] != key.shape[1]
    parts = [
        F.scaled_dot_product_attention(
            queries[:, :, piece.start : piece.stop],
            key[:, :, : piece.keys],
            value[:, :, : piece.keys],
            attn_mask=piece.mask,
            is_causal=piece.mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        for piece in pieces
    ]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return joined.transpose(1, 2)  # [requests, queries, heads, head_size]


class TorchPagedAttention(AttentionBackend):
    """Attention over a cache [num_blocks, 2, num_kv_heads, block_size, head_size], zeros at first.

    Keys and values of one block and head lie together, so that one gather brings both, in the shape that batched
    matrix products want.
    """

    name: ClassVar[str] = "TORCH_PAGED"

    @classmethod
    def supports(cls, question: AttentionQuestion) -> str | None:
        return "it has no sliding window" if question.sliding_window is not None else None

    @classmethod
    def kv_cache_shape(cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        return (num_blocks, 2, num_kv_heads, block_size, head_size)

    @classmethod
    def build_metadata(cls, metadata: AttentionMetadata) -> None:
        metadata.backend = Paging(metadata)

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_size: int, scale: float, prefix: str = ""
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_size = head_size
        self.scale = scale
        self.prefix = prefix
        # Bound once: a call costs no look-up of what a platform replaced.
        self._write = bind_kernel(paged_write, "paged_attention.write")
        self._decode = bind_kernel(paged_decode, "paged_attention.decode")
        self._prefill = bind_kernel(paged_prefill, "paged_attention.prefill")

    def write_cache(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        layout = _paging(metadata).layout(kv_cache, key.dtype)
        self._write(kv_cache, key, value, layout.key_rows, layout.value_rows)

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        layout = _paging(metadata).layout(kv_cache, query.dtype)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)  # [tokens, heads, head_size]
        for decode in layout.decodes:
            kv = layout.gather(decode, kv_cache)  # [2, requests, kv_heads, keys, head_size]
            decode.put(output, self._decode(decode.take(query), kv, decode.mask, self.scale))
        for prefill in layout.prefills:
            kv = layout.gather(prefill, kv_cache)
            prefill.put(output, self._prefill(prefill.take(query), kv, prefill.pieces, self.scale))
        return output


def _paging(metadata: AttentionMetadata) -> Paging:
    if not isinstance(metadata.backend, Paging):
        metadata.backend = Paging(metadata)
    paging: Paging = metadata.backend
    return paging
