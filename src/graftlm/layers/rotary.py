"""Rotary position embedding and its scalings for longer contexts; knows no attention.

Each scaling is a class of its own, so that replacing `RotaryEmbedding` does not replace them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers.parameters import build_device, build_dtype
from graftlm.ops.build import find_build
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, random_numbers, roundings
from graftlm.plugins.spelling import counted


@CustomOp.register("rotary_embedding")
class RotaryEmbedding(CustomOp):
    """Rotate the first `rotary_dim` of each head's numbers by angles that grow with the token's position.

    Neox style pairs number i with number i + rotary_dim / 2, the other style pairs neighbours. Positions must be
    below `max_position`.
    """

    def __init__(
        self,
        head_size: int,
        *,
        max_position: int,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        is_neox_style: bool = True,
        scaling: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape=(head_size,))
        self.head_size = head_size
        self.rotary_dim = rotary_dim or head_size
        self.max_position = max_position
        self.base = base
        self.is_neox_style = is_neox_style
        self.scaling = dict(scaling or {})
        self.cos_sin_cache: torch.Tensor
        table = self.make_table().to(dtype or build_dtype()).to(build_device())
        self.register_buffer("cos_sin_cache", table, persistent=False)

    def inverse_frequencies(self) -> torch.Tensor:
        """Return the angle per position of each pair, [rotary_dim / 2] float32; scalings override it."""
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64).float() / self.rotary_dim
        return 1.0 / (self.base**exponents)

    def make_table(self) -> torch.Tensor:
        """Return [max_position, 2, rotary_dim]: cosines, and sines with the sign that their place needs."""
        positions = torch.arange(self.max_position, dtype=torch.float32)
        angles = torch.outer(positions, self.inverse_frequencies())  # [max_position, rotary_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        if self.is_neox_style:
            return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)), dim=1)
        pairs = torch.stack((torch.stack((cos, cos), dim=-1), torch.stack((-sin, sin), dim=-1)), dim=1)
        return pairs.flatten(2)  # [max_position, 2, rotary_dim]

    def forward_native(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and key rotated, in their own shapes: [tokens, heads * head_size] or with the axes apart."""
        flat = query.dim() == 2
        tokens, size = query.shape[0], self.head_size
        q = query.view(tokens, query.shape[1] // size, size) if flat else query  # [tokens, heads, head_size]
        k = key.view(tokens, key.shape[1] // size, size) if flat else key  # [tokens, kv_heads, head_size]
        # One pass over both: what costs here is the number of calls.
        x = torch.cat((q, k), dim=1)  # [tokens, heads + kv_heads, head_size]
        cos, sin = self.cos_sin_cache.index_select(0, positions).unsqueeze(2).unbind(1)  # [tokens, 1, rotary_dim]
        turning = x if self.rotary_dim == self.head_size else x[..., : self.rotary_dim]
        swapped = self._swap_pairs(turning)
        turning.mul_(cos).addcmul_(swapped, sin)
        q, k = x[:, : q.shape[1]], x[:, q.shape[1] :]
        return (q.flatten(1), k.flatten(1)) if flat else (q, k)

    def _swap_pairs(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of x in which the two numbers of each pair have changed places."""
        if self.is_neox_style:
            first, second = x.chunk(2, dim=-1)
            return torch.cat((second, first), dim=-1)
        return x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).flip(-1).flatten(-2)

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls(64, max_position=300)
        yield cls(32, max_position=300, rotary_dim=16, base=500_000.0)
        yield cls(16, max_position=300, is_neox_style=False)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        """Query and key as a model has them: neighbouring columns of one matrix; positions in any order."""
        last = self.max_position - 1
        for heads, kv_heads, places in ((4, 4, [0, 1, 2]), (6, 2, [last, 0, last // 2, last // 2]), (2, 1, [])):
            positions = torch.tensor(places, dtype=torch.int64, device=generator.device)
            sizes = [heads * self.head_size, kv_heads * self.head_size, kv_heads * self.head_size]
            qkv = random_numbers(generator, len(places), sum(sizes), dtype=dtype)
            query, key, _ = torch.split(qkv, sizes, dim=-1)
            yield OpExample(
                f"{counted(len(places), 'token')}, {counted(heads, 'head')}, {counted(kv_heads, 'kv head')}",
                (positions, query, key),
            )

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return roundings(
            dtype, full=16, half=4, reason="two products and one sum with the same table; an angle computed anew "
            "in float32 would be off by a thousand times as much at large positions",
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"head_size={self.head_size}, base={self.base}, max_position={self.max_position}, {self.choice.method}"
        )


class LinearScalingRotaryEmbedding(RotaryEmbedding):
    """Positions divided by `scaling["factor"]`."""

    def inverse_frequencies(self) -> torch.Tensor:
        return super().inverse_frequencies() / float(self.scaling["factor"])

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls(64, max_position=300, scaling={"factor": 4.0})


class Llama3RotaryEmbedding(RotaryEmbedding):
    """Long wavelengths stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""

    def inverse_frequencies(self) -> torch.Tensor:
        frequencies = super().inverse_frequencies()
        factor = float(self.scaling["factor"])
        low, high = float(self.scaling["low_freq_factor"]), float(self.scaling["high_freq_factor"])
        original = float(self.scaling["original_max_position_embeddings"])
        wavelengths = 2 * math.pi / frequencies
        # 0 where the original context holds few waves (stretch), 1 where it holds many (keep).
        share = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - share) * frequencies / factor + share * frequencies

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        yield cls(64, max_position=300, scaling={**scaling, "original_max_position_embeddings": 64})


#: rope type -> its class and what its scaling must say
_KINDS: dict[str, tuple[type[RotaryEmbedding], tuple[str, ...]]] = {
    "default": (RotaryEmbedding, ()),
    "linear": (LinearScalingRotaryEmbedding, ("factor",)),
    "llama3": (
        Llama3RotaryEmbedding,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
}


def get_rope(
    head_size: int,
    *,
    max_position: int,
    base: float = 10000.0,
    rope_scaling: Mapping[str, Any] | None = None,
    rotary_dim: int | None = None,
    is_neox_style: bool = True,
    dtype: torch.dtype | None = None,
) -> RotaryEmbedding:
    """Return the rotary embedding that a checkpoint's config describes; equal ones of a build are one object.

    `rope_scaling` is the config's `rope_scaling` or `rope_parameters`; a `rope_theta` or `partial_rotary_factor`
    in it counts. The table reaches to the build's max_model_len where that is known.
    """
    scaling = dict(rope_scaling or {})
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    base = float(scaling.get("rope_theta") or base)
    if rotary_dim is None and scaling.get("partial_rotary_factor"):
        rotary_dim = int(head_size * float(scaling["partial_rotary_factor"]))
    if kind not in _KINDS:
        raise ModelMismatch(f"rope_scaling type {kind!r} is not supported; known are {', '.join(_KINDS)}")
    cls, needed = _KINDS[kind]
    if missing := [name for name in needed if name not in scaling]:
        raise ModelMismatch(
            f"rope_scaling type {kind!r} lacks {', '.join(missing)}; complete it with --hf-overrides"
        )
    if kind == "linear":
        max_position = math.ceil(max_position * float(scaling["factor"]))
    build = find_build()
    if build is not None and build.config.model.max_model_len:
        max_position = build.config.model.max_model_len
    key = (cls, head_size, max_position, base, rotary_dim, is_neox_style, dtype, sorted(map(str, scaling.items())))
    ropes: dict[str, RotaryEmbedding] = {} if build is None else build.state.setdefault("ropes", {})
    if str(key) not in ropes:
        ropes[str(key)] = cls(
            head_size,
            max_position=max_position,
            rotary_dim=rotary_dim,
            base=base,
            is_neox_style=is_neox_style,
            scaling=scaling,
            dtype=dtype,
        )
    return ropes[str(key)]
