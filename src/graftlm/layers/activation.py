"""Activation functions as ops, and the table of their names in checkpoint configs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F

from graftlm.contracts.errors import ModelMismatch
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, exactly, random_numbers, roundings
from graftlm.plugins.spelling import nearest_names


def _rows(
    generator: torch.Generator, dtype: torch.dtype, *, pairs: bool = False, in_place: bool = False
) -> Iterator[OpExample]:
    """Rows of several widths, as wide as no vector register, and numbers at which an exponential saturates."""
    overwrite = (0,) if in_place else ()
    for tokens, size in ((1, 64), (5, 96), (3, 7), (0, 64)):
        width = 2 * size if pairs else size
        x = random_numbers(generator, tokens, width, dtype=dtype, scale=3.0)
        yield OpExample(f"{tokens} x {width}", (x,), overwrite)
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 100.0, -100.0], device=generator.device)
    x = torch.cat((edges, edges.flip(0))) if pairs else edges
    yield OpExample("saturated", (x.to(dtype)[None],), overwrite)


def _exponential(dtype: torch.dtype) -> Tolerance:
    return roundings(
        dtype, full=64, half=4, reason="one exponential or error function, of a few units in the last place, "
        "and two products",
    )  # fmt: skip


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    """silu(x[..., :d]) * x[..., d:] for x [..., 2 * d]."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, pairs=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


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

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls("none")
        yield cls("tanh")

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, pairs=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


@CustomOp.register("silu")
class SiLU(CustomOp):
    """x * sigmoid(x); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x, inplace=True)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, in_place=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


@CustomOp.register("relu")
class ReLU(CustomOp):
    """max(x, 0); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(x)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, in_place=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return exactly("a choice between two numbers rounds nothing")


@CustomOp.register("relu2")
class ReLUSquared(CustomOp):
    """max(x, 0)²; `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(x).square_()

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, in_place=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return roundings(dtype, full=1, half=1, reason="one product")


@CustomOp.register("gelu")
class GELU(CustomOp):
    """x * Φ(x), by the error function."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


@CustomOp.register("gelu_new")
class NewGELU(CustomOp):
    """x * Φ(x), by the tanh approximation; checkpoints call it gelu_new, gelu_fast or gelu_pytorch_tanh."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


@CustomOp.register("quick_gelu")
class QuickGELU(CustomOp):
    """x * sigmoid(1.702 x)."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(1.702 * x).mul_(x)

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


@CustomOp.register("tanh")
class Tanh(CustomOp):
    """tanh(x); `x` may be overwritten."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh_()

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        return _rows(generator, dtype, in_place=True)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return _exponential(dtype)


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
        near = nearest_names(name, _ACTIVATIONS) or sorted(_ACTIVATIONS)
        raise ModelMismatch(f"unknown activation {name!r}; known are {', '.join(near)}")
    return _ACTIVATIONS[name]()
