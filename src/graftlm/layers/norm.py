"""Normalizations, each with the addition of the residual stream folded in; they know no model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F

from graftlm.layers.parameters import empty_parameter
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, random_numbers, roundings
from graftlm.plugins.spelling import counted


def _norm_inputs(generator: torch.Generator, dtype: torch.dtype, size: int) -> Iterator[OpExample]:
    """Calls without and with a residual; large and small rows, since what is divided by is the row's own size."""
    for tokens in (1, 7, 0):
        x = random_numbers(generator, tokens, size, dtype=dtype, scale=3.0)
        yield OpExample(counted(tokens, "token"), (x,))
        residual = random_numbers(generator, tokens, size, dtype=dtype, scale=20.0)
        yield OpExample(f"{counted(tokens, 'token')} with residual", (x, residual), may_overwrite=(1,))
    tiny = random_numbers(generator, 2, size, dtype=dtype, scale=1e-3)
    yield OpExample("rows no larger than eps", (tiny,))


def _norm_tolerance(dtype: torch.dtype) -> Tolerance:
    return roundings(
        dtype, full=64, half=4, reason="one sum over the row in any order, then a root and two products"
    )


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

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls(64)
        yield cls(576, 1e-5)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _norm_inputs(generator, dtype, self.hidden_size)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _norm_tolerance(dtype)

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

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls(64)
        yield cls(576, 1e-6)
        yield cls(96, bias=False)
        yield cls(96, elementwise_affine=False)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _norm_inputs(generator, dtype, self.hidden_size)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _norm_tolerance(dtype)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, {self.choice.method}"
