"""The attention layer of a model: asks once which backend computes it, then hands it queries, keys and values.

It does not know how the cache is laid out or how attention is computed.
"""

from __future__ import annotations

import contextlib
from typing import cast

import msgspec
import torch

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.attention import AttentionBackend, ForwardContext
from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.platform import AttentionQuestion
from graftlm.ops.attention.selector import InvalidAttentionBackend, get_attn_backend
from graftlm.ops.build import NoBuild, find_build
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.pluggable import PluggableLayer


class NoKVCache(RuntimeError):
    """An attention layer ran before the worker gave it its KV cache."""

    def __init__(self, layer: str) -> None:
        super().__init__(f"{layer} has no KV cache; Worker.initialize_kv_cache must bind one before the first step")


def _choose_backend(question: AttentionQuestion, config: EngineConfig) -> tuple[str, type[AttentionBackend]]:
    """Return the cache's number format and the backend.

    Quantized weights have lost more than 16-bit keys and values do: left to us, theirs are float16 where possible.
    """
    selected = config.attention.attention_backend
    left_to_us = config.cache.kv_cache_dtype == "auto" and config.asked_by_user("model.dtype") != "float32"
    if left_to_us and config.model.quantization and question.dtype == "float32":
        shorter = msgspec.structs.replace(question, kv_cache_dtype="float16")
        with contextlib.suppress(InvalidAttentionBackend):
            return "float16", get_attn_backend(shorter, selected)
    return question.kv_cache_dtype, get_attn_backend(question, selected)


class Attention(PluggableLayer):
    """Causal attention of one layer over the paged KV cache; sizes are this rank's.

    With `rotary_emb`, pass positions to `forward`, and the layer rotates query and key itself: a backend can
    then do rotation and cache write in one.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        *,
        rotary_emb: CustomOp | None = None,
        sliding_window: int | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        build = find_build()
        if build is None:
            raise NoBuild(f"Attention {prefix}".strip())
        cache = build.config.cache
        self.prefix = prefix or type(self).__name__
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size = head_size
        self.rotary_emb = rotary_emb
        if self.num_heads % self.num_kv_heads:
            raise ModelMismatch(
                f"{self.prefix}: num_heads={num_heads} is no multiple of num_kv_heads={num_kv_heads}"
            )
        dtype = str(build.dtype).removeprefix("torch.")
        question = AttentionQuestion(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=head_size,
            dtype=dtype,
            kv_cache_dtype=dtype if cache.kv_cache_dtype == "auto" else cache.kv_cache_dtype,
            block_size=cache.block_size,
            sliding_window=sliding_window,
        )
        self.kv_cache_dtype, self.backend_cls = _choose_backend(question, build.config)
        self.backend = self.backend_cls(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=head_size,
            scale=scale,
            prefix=self.prefix,
        )
        self.fused = rotary_emb is not None and self.backend.fuse_rotation(rotary_emb)
        #: Bound by the worker, shaped by `backend_cls.kv_cache_shape`, zeros at first.
        self.kv_cache: torch.Tensor | None = None

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Use `kv_cache` from now on."""
        self.kv_cache = kv_cache

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: ForwardContext,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [tokens, num_heads * head_size]; key and value are stored first.

        query [tokens, num_heads * head_size], key and value [tokens, num_kv_heads * head_size].
        """
        if self.kv_cache is None:
            raise NoKVCache(self.prefix)
        if self.fused:
            return self.backend.rotate_and_attend(
                query, key, value, self.kv_cache, context.attention, cast("torch.Tensor", positions)
            )
        if self.rotary_emb is not None:
            query, key = self.rotary_emb(positions, query, key)
        tokens = query.shape[0]
        query = query.view(tokens, self.num_heads, self.head_size)  # [tokens, num_heads, head_size]
        key = key.view(tokens, self.num_kv_heads, self.head_size)  # [tokens, num_kv_heads, head_size]
        value = value.view(tokens, self.num_kv_heads, self.head_size)  # [tokens, num_kv_heads, head_size]
        self.backend.write_cache(key, value, self.kv_cache, context.attention)
        return self.backend.attend(query, self.kv_cache, context.attention).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads, {self.num_kv_heads} kv heads of {self.head_size}, {self.backend_cls.name}"
