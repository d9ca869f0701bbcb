"""Activation functions as ops, and the table of their names in checkpoint configs."""

from __future__ import annotations

import difflib

import torch
import torch.nn.functional as F

from graftlm.ops.custom_op import CustomOp


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    """silu(x[..., :d]) * x[..., d:] for x [..., 2 * d]."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


@CustomOp.register("gelu_and_mul")
class GeluAndMul(CustomOp):
    """gelu(x[..., :d]) * x[..., d:] for x [..., 2 * d]; `approximate` is "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={approximate!r}: choose 'none' or 'tanh'")
        self.approximate = approximate

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate=self.approximate).mul_(up)


@CustomOp.register("silu")
class SiLU(CustomOp):
    """x * sigmoid(x); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x, inplace=True)


@CustomOp.register("relu")
class ReLU(CustomOp):
    """max(x, 0); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(x)


@CustomOp.register("relu2")
class ReLUSquared(CustomOp):
    """max(x, 0)²; `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(x).square_()


@CustomOp.register("gelu")
class GELU(CustomOp):
    """x * Φ(x), by the error function."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)


@CustomOp.register("gelu_new")
class NewGELU(CustomOp):
    """x * Φ(x), by the tanh approximation; checkpoints call it gelu_new, gelu_fast or gelu_pytorch_tanh."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


@CustomOp.register("quick_gelu")
class QuickGELU(CustomOp):
    """x * sigmoid(1.702 x)."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(1.702 * x).mul_(x)


@CustomOp.register("tanh")
class Tanh(CustomOp):
    """tanh(x); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh_()


_ACTIVATIONS: dict[str, type[CustomOp]] = {
    "gelu": GELU,
    "gelu_fast": NewGELU,
    "gelu_new": NewGELU,
    "gelu_python": GELU,
    "gelu_pytorch_tanh": NewGELU,
    "quick_gelu": QuickGELU,
    "relu": ReLU,
    "relu2": ReLUSquared,
    "silu": SiLU,
    "swish": SiLU,
    "tanh": Tanh,
}


def get_activation(name: str) -> CustomOp:
    """Build the activation that a checkpoint's config calls `name`."""
    if name not in _ACTIVATIONS:
        near = difflib.get_close_matches(name, _ACTIVATIONS, n=3) or sorted(_ACTIVATIONS)
        raise ValueError(f"unknown activation {name!r}; known are {', '.join(near)}")
    return _ACTIVATIONS[name]()
