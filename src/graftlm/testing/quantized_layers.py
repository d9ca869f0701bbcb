"""Layers whose weights a quantization method keeps, with the plain weights that it should stand for.

It knows no method; what it builds needs the plugin host of a worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.quantization import QuantizationConfig
from graftlm.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from graftlm.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from graftlm.ops.build import building_aside
from graftlm.ops.examples import random_numbers

_INPUTS, _HEADS, _KV_HEADS, _HEAD_SIZE, _VOCAB = 128, 4, 2, 32, 264
_Q8_0_COLUMNS = 32

Piece = tuple[str | int | None, Any]
"""A shard's name and its matrix, a tensor or a QuantizedWeight."""


@dataclasses.dataclass(slots=True)
class LayerCase:
    """One layer: how it is built, the matrices that fill it, and what they stand for."""

    label: str
    layer_cls: type[Any]
    args: tuple[Any, ...]
    pieces: list[Piece]
    bias: torch.Tensor | None = None

    @property
    def weight(self) -> torch.Tensor:
        """[output, input] in float32"""
        return torch.cat([plain(matrix) for _, matrix in self.pieces])

    @property
    def embeds(self) -> bool:
        return issubclass(self.layer_cls, VocabParallelEmbedding)

    def build(
        self, method: QuantizationConfig, *, dtype: torch.dtype, device: str = "cpu", hf_config: dict[str, Any]
    ) -> Any:
        """Return the layer, its weight registered by `method` and not yet filled."""
        config = EngineConfig()
        config.model.hf_config = hf_config
        options = {} if self.embeds else {"bias": self.bias is not None}
        with building_aside(config, dtype=dtype, device=torch.device(device)), torch.device(device):
            return self.layer_cls(*self.args, quant_config=method, prefix=f"model.{self.label}", **options)

    def fill(self, layer: Any, pieces: Sequence[Piece] | None = None) -> Any:
        """Load and pack as a worker does; returns the layer."""
        for shard, matrix in self.pieces if pieces is None else pieces:
            layer.load_weight(matrix, shard)
        if self.bias is not None:
            layer.load_bias(self.bias)
        layer.process_weights_after_loading()
        return layer.requires_grad_(False)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [tokens, input] times the plain weight, in float32: [tokens, output]."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight, bias)


def plain(matrix: Any) -> torch.Tensor:
    """Return what a matrix stands for, in float32."""
    return (matrix if isinstance(matrix, torch.Tensor) else matrix.dequantize(torch.float32)).float()


def plain_cases(dtype: torch.dtype) -> list[LayerCase]:
    """Return one layer of each kind, filled with tensors of the checkpoint's format `dtype`."""
    draw = _Draw(dtype)
    q, kv, inner = _HEADS * _HEAD_SIZE, _KV_HEADS * _HEAD_SIZE, 96
    qkv: list[Piece] = [("q", draw(q)), ("k", draw(kv)), ("v", draw(kv))]
    merged: list[Piece] = [(0, draw(inner)), (1, draw(inner))]
    return [
        LayerCase("replicated", ReplicatedLinear, (_INPUTS, 64), [(None, draw(64))], draw.vector(64)),
        LayerCase("narrow", ReplicatedLinear, (_INPUTS, 7), [(None, draw(7))]),
        LayerCase("qkv", QKVParallelLinear, (_INPUTS, _HEAD_SIZE, _HEADS, _KV_HEADS), qkv),
        LayerCase("merged", MergedColumnParallelLinear, (_INPUTS, [inner, inner]), merged),
        LayerCase("row", RowParallelLinear, (_INPUTS, 64), [(None, draw(64))], draw.vector(64)),
        LayerCase("embedding", VocabParallelEmbedding, (_VOCAB, _INPUTS), [(None, draw(_VOCAB))]),
        LayerCase("lm_head", ParallelLMHead, (_VOCAB, _INPUTS), [(None, draw(_VOCAB))]),
    ]


def packed_cases() -> list[LayerCase]:
    """Return layers filled from a file's blocks: whole, cut between blocks, and beside a plain matrix."""
    draw = _Draw(torch.float32)
    q, kv = _HEADS * _HEAD_SIZE, _KV_HEADS * _HEAD_SIZE
    wide = q8_0(torch.cat([draw(64), draw(64)], dim=1))
    mixed: list[Piece] = [("q", q8_0(draw(q))), ("k", q8_0(draw(kv))), ("v", draw(kv))]
    return [
        LayerCase("replicated", ReplicatedLinear, (_INPUTS, 64), [(None, q8_0(draw(64)))], draw.vector(64)),
        LayerCase("cut", ReplicatedLinear, (_INPUTS, 64), [(None, wide.narrow(1, _INPUTS, _INPUTS))]),
        LayerCase("qkv", QKVParallelLinear, (_INPUTS, _HEAD_SIZE, _HEADS, _KV_HEADS), mixed),
        LayerCase("embedding", VocabParallelEmbedding, (_VOCAB, _INPUTS), [(None, q8_0(draw(_VOCAB)))]),
    ]


def inputs(dtype: torch.dtype, *, tokens: Iterable[int] = (1, 5, 33, 0)) -> list[torch.Tensor]:
    """Return x [tokens, input] for each number of tokens."""
    generator = torch.Generator().manual_seed(3)
    return [random_numbers(generator, count, _INPUTS, dtype=dtype) for count in tokens]


def q8_0(matrix: torch.Tensor) -> Any:
    """Return the matrix [rows, columns] in GGUF's Q8_0: blocks of 32 columns, a half-float scale and 32 bytes."""
    from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight

    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // _Q8_0_COLUMNS, _Q8_0_COLUMNS)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).to(torch.float16)  # [rows, blocks, 1]
    values = (blocks / scale.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)
    data = torch.cat([scale.view(torch.uint8), values.view(torch.uint8)], dim=-1)  # [rows, blocks, 34]
    return QuantizedGGUFWeight("Q8_0", data.reshape(rows, -1))


class _Draw:
    """Draws matrices of a width that all layers share, the same ones each time."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(11)
        self._dtype = dtype

    def __call__(self, rows: int) -> torch.Tensor:
        return random_numbers(self._generator, rows, _INPUTS, dtype=self._dtype, scale=_INPUTS**-0.5)

    def vector(self, size: int) -> torch.Tensor:
        return random_numbers(self._generator, size, dtype=self._dtype)
