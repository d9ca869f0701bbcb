"""Weight-only int8: each row of a linear layer's matrix as bytes and one scale, quantized while it is loaded.

The front end looks at the class's name only; this module is imported by workers, so it may import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.contracts.weights import QuantizedWeight
from graftlm.layers import VocabParallelEmbedding


class Int8WeightOnly(QuantizationConfig):
    """A quarter of float32's memory for every linear layer; embeddings and the output head stay as they are."""

    name = "int8_weight_only"

    def __init__(self, keep: Sequence[str] = ()) -> None:
        self.keep = tuple(keep)

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> Int8WeightOnly:
        """Read which layers to keep, in the word that checkpoints use for it."""
        section = hf_config.get("quantization_config") or {}
        return cls(section.get("modules_to_not_convert") or ())

    def get_linear_method(self, layer: nn.Module, prefix: str) -> LinearMethod | None:
        if isinstance(layer, VocabParallelEmbedding) or any(name in prefix for name in self.keep):
            return None
        return Int8LinearMethod()


class Int8LinearMethod(LinearMethod):
    """Keeps `weight` [output_size, input_size] int8 and `weight_scale` [output_size] on the layer."""

    def create_weights(self, layer: nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype) -> None:
        layer.weight = _parameter(torch.empty(output_size, input_size, dtype=torch.int8))
        layer.weight_scale = _parameter(torch.empty(output_size, dtype=dtype))

    def load_weight(self, layer: nn.Module, weight: Any, *, row_offset: int) -> None:
        rows = weight.dequantize(torch.float32) if isinstance(weight, QuantizedWeight) else weight.float()
        scale = rows.abs().amax(dim=1).clamp_min(1e-12) / 127.0  # [rows]
        place = slice(row_offset, row_offset + rows.shape[0])
        layer.weight.data[place] = (rows / scale[:, None]).round_().to(torch.int8)
        layer.weight_scale.data[place] = scale.to(layer.weight_scale.dtype)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = F.linear(x, layer.weight.to(x.dtype)).mul_(layer.weight_scale)  # [tokens, output_size]
        return y if bias is None else y.add_(bias)

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        scale = layer.weight_scale[ids]  # [tokens]
        return F.embedding(ids, layer.weight).to(scale.dtype) * scale[:, None]  # [tokens, input_size]


def _parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)
