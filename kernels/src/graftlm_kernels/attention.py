"""NATIVE_CPU: paged attention by native kernels, for any mix of prefill and decode, rotation included.

It does not know models; how a step is cut into tasks for the threads is the native side's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata
from graftlm_kernels import _native
from graftlm_kernels.capture import StepCapture
from graftlm_kernels.native import DTYPE_CODES, head_refusal, use_threads
from graftlm_kernels.ops import RotaryEmbedding

if TYPE_CHECKING:
    from graftlm.contracts.platform import AttentionQuestion

FORMATS = tuple(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)


class StepAddresses:
    """Where a step's tensors lie; they live as long as this does."""

    __slots__ = ("held", "slots", "step")

    def __init__(self, metadata: AttentionMetadata) -> None:
        query_start, seq_lens = metadata.query_start.contiguous(), metadata.seq_lens.contiguous()
        table, slots = metadata.block_table, metadata.slot_mapping.contiguous()
        if table.dim() == 2 and table.size(1) and table.stride(1) != 1:
            table = table.contiguous()
        self.held = (query_start, seq_lens, table, slots)
        self.slots = slots.data_ptr()
        self.step = (
            metadata.num_requests, query_start.data_ptr(), seq_lens.data_ptr(), table.data_ptr(), table.stride(0),
        )  # fmt: skip


class NativeCpuAttention(AttentionBackend):
    """Attention over a cache [num_blocks, 2, num_kv_heads, block_size, head_size], zeros at first.

    The keys of a block and head are kept [head_size, block_size], so that eight keys meet a query at once.
    """

    name: ClassVar[str] = "NATIVE_CPU"

    @classmethod
    def supports(cls, question: AttentionQuestion) -> str | None:
        if question.sliding_window is not None:
            return "it has no sliding window"
        if wrong_size := head_refusal(question.head_size):
            return wrong_size
        if question.num_kv_heads < 1 or question.num_heads % question.num_kv_heads:
            return f"{question.num_heads} query heads are no multiple of {question.num_kv_heads} key-value heads"
        wrong = {question.dtype, question.kv_cache_dtype} - set(FORMATS)
        return f"it computes in {', '.join(FORMATS)}, not in {wrong.pop()}" if wrong else None

    @classmethod
    def kv_cache_shape(cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        return (num_blocks, 2, num_kv_heads, block_size, head_size)

    @classmethod
    def build_metadata(cls, metadata: AttentionMetadata) -> None:
        metadata.backend = StepAddresses(metadata)

    @classmethod
    def capture_steps(cls, model: torch.nn.Module) -> StepCapture | None:
        capture = StepCapture(model)
        return None if capture.is_given_up else capture

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_size: int, scale: float, prefix: str = ""
    ) -> None:
        use_threads()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_size = head_size
        self.prefix = prefix
        self.layer = _native.AttentionLayer(num_heads, num_kv_heads, head_size, scale)
        self._write, self._attend = self.layer.write, self.layer.attend
        self._table: torch.Tensor | None = None

    def write_cache(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        key, value = _plain(key), _plain(value)
        self._write(
            kv_cache.data_ptr(), DTYPE_CODES[kv_cache.dtype], kv_cache.size(3), key.data_ptr(), key.stride(0),
            value.data_ptr(), value.stride(0), DTYPE_CODES[key.dtype], key.size(0), _addresses(metadata).slots, 0,
        )  # fmt: skip

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        query = _plain(query)
        output = torch.empty(query.shape, dtype=query.dtype)
        self._attend(
            kv_cache.data_ptr(), DTYPE_CODES[kv_cache.dtype], kv_cache.size(3), query.data_ptr(), query.stride(0),
            output.data_ptr(), output.stride(0), DTYPE_CODES[query.dtype], *_addresses(metadata).step, 0,
        )  # fmt: skip
        return output

    def fuse_rotation(self, rotary_emb: Any) -> bool:
        if not isinstance(rotary_emb.choice.implementation, RotaryEmbedding):
            return False  # somebody else's rotation
        table = rotary_emb.cos_sin_cache
        if rotary_emb.head_size != self.head_size or not table.is_contiguous() or table.dtype not in DTYPE_CODES:
            return False
        self._table = table
        self.layer.bind_rotation(
            table.data_ptr(), DTYPE_CODES[table.dtype], rotary_emb.rotary_dim, rotary_emb.is_neox_style
        )
        return True

    def rotate_and_attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        addresses = _addresses(metadata)
        tokens = query.size(0)
        output = torch.empty((tokens, self.num_heads * self.head_size), dtype=query.dtype)
        code, cache = DTYPE_CODES[query.dtype], kv_cache.data_ptr()
        cache_code, block_size, where = DTYPE_CODES[kv_cache.dtype], kv_cache.size(3), positions.data_ptr()
        self._write(
            cache, cache_code, block_size, key.data_ptr(), key.stride(0), value.data_ptr(), value.stride(0), code,
            tokens, addresses.slots, where,
        )  # fmt: skip
        self._attend(
            cache, cache_code, block_size, query.data_ptr(), query.stride(0), output.data_ptr(), output.stride(0),
            code, *addresses.step, where,
        )  # fmt: skip
        return output


def _addresses(metadata: AttentionMetadata) -> StepAddresses:
    if not isinstance(metadata.backend, StepAddresses):
        metadata.backend = StepAddresses(metadata)
    addresses: StepAddresses = metadata.backend
    return addresses


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Return x [tokens, heads, head_size] with its heads one behind the other; tokens may lie apart."""
    heads_apart = x.size(1) > 1 and x.stride(1) != x.size(2)
    return x.contiguous() if x.stride(2) != 1 or heads_apart else x
