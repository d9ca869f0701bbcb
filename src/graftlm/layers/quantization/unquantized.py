"""Plain weights: one matrix in the model's number format; quantized checkpoints are dequantized at load.

It does not know which layer it serves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from graftlm.contracts.quantization import LinearMethod
from graftlm.layers.parameters import as_tensor, empty_parameter
from graftlm.ops.custom_op import CustomOp


@CustomOp.register("linear")
class LinearOp(CustomOp):
    """x [tokens, input] times weight [output, input] transposed, plus bias [output]: [tokens, output]."""

    def __init__(self, *, input_size: int, output_size: int) -> None:
        super().__init__(shape=(output_size, input_size))

    def process_weights_after_loading(self) -> None:
        """The layer that owns the weight packs it."""

    def forward_native(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(x, weight, bias)


class UnquantizedLinearMethod(LinearMethod):
    """The default of every linear layer and embedding. It keeps its state on the layer."""

    def create_weights(
        self, layer: torch.nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype
    ) -> None:
        layer.weight = empty_parameter(output_size, input_size, dtype=dtype)
        layer.linear_op = LinearOp(input_size=input_size, output_size=output_size)

    def load_weight(self, layer: torch.nn.Module, weight: Any, *, row_offset: int) -> None:
        target: torch.Tensor = layer.weight.data  # type: ignore[assignment]
        rows = as_tensor(weight, target.dtype)
        target[row_offset : row_offset + rows.shape[0]].copy_(rows)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        op: LinearOp = layer.linear_op  # type: ignore[assignment]
        if op.choice.implementation is not None:
            op.choice.implementation.pack({"weight": layer.weight})  # type: ignore[dict-item]

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = layer.linear_op(x, layer.weight, bias)  # type: ignore[operator]
        return result

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, layer.weight)  # type: ignore[arg-type]
