"""Normalizations, each with the addition of the residual stream folded in; they know no model."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from graftlm.layers.parameters import empty_parameter
from graftlm.ops.custom_op import CustomOp


@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    """x / sqrt(mean(x²) + eps) * weight, over the last axis.

    With a residual: both are added first, and the sum is returned as the new residual. The residual's memory
    may be overwritten; `x` is left unchanged.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(shape=(hidden_size,))
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = empty_parameter(hidden_size)

    def forward_native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return F.rms_norm(x, (self.hidden_size,), self.weight, self.eps)
        residual.add_(x)
        return F.rms_norm(residual, (self.hidden_size,), self.weight, self.eps), residual

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, {self.choice.method}"


@CustomOp.register("layer_norm")
class LayerNorm(CustomOp):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last axis; residual as in RMSNorm."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, *, bias: bool = True, elementwise_affine: bool = True
    ) -> None:
        super().__init__(shape=(hidden_size,))
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = empty_parameter(hidden_size) if elementwise_affine else None
        self.bias = empty_parameter(hidden_size) if elementwise_affine and bias else None

    def forward_native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return F.layer_norm(x, (self.hidden_size,), self.weight, self.bias, self.eps)
        residual.add_(x)
        return F.layer_norm(residual, (self.hidden_size,), self.weight, self.bias, self.eps), residual

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, {self.choice.method}"
