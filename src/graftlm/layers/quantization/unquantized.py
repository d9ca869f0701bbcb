"""Plain weights: one matrix in the model's number format; quantized checkpoints are dequantized at load.

It does not know which layer it serves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from graftlm.contracts.quantization import LinearMethod
from graftlm.layers.parameters import as_tensor, empty_parameter
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, random_numbers, roundings
from graftlm.ops.implementation import OpImplementation
from graftlm.plugins.spelling import counted


@CustomOp.register("linear")
class LinearOp(CustomOp):
    """x [tokens, input] times weight [output, input] transposed, plus bias [output]: [tokens, output]."""

    #: Returns rows of the weight that the implementation has packed; None before, and without one.
    packed_rows: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(self, *, input_size: int, output_size: int) -> None:
        super().__init__(shape=(output_size, input_size))

    def process_weights_after_loading(self) -> None:
        """The layer that owns the weight calls `pack`."""

    def pack(self, weight: torch.nn.Parameter) -> None:
        """Let the chosen implementation pack the layer's weight; one that keeps it itself empties the layer's."""
        implementation = self.choice.implementation
        if implementation is None:
            return
        implementation.pack({"weight": weight})
        if isinstance(implementation, LinearImplementation):
            weight.data = torch.empty(0, dtype=weight.dtype)
            self.packed_rows = implementation.rows
        else:
            self.packed_rows = partial(F.embedding, weight=weight)

    def forward_native(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(x, weight, bias)

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        yield cls(input_size=64, output_size=96)
        yield cls(input_size=100, output_size=7)

    def prepare_example(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        outputs, inputs = self.fixed_shape
        weight = random_numbers(generator, outputs, inputs, dtype=dtype, scale=inputs**-0.5)
        self.pack(torch.nn.Parameter(weight, requires_grad=False))

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        """With the packed weight where there is one, since an implementation then ignores the argument."""
        outputs, inputs = self.fixed_shape
        if self.packed_rows is None:
            weight = random_numbers(generator, outputs, inputs, dtype=dtype, scale=inputs**-0.5)
        else:
            weight = self.packed_rows(torch.arange(outputs, device=generator.device))  # [outputs, inputs]
        bias = random_numbers(generator, outputs, dtype=dtype)
        for tokens in (1, 5, 33, 0):
            x = random_numbers(generator, tokens, inputs, dtype=dtype)
            yield OpExample(counted(tokens, "token"), (x, weight, bias if tokens == 5 else None))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return roundings(
            dtype, full=64, half=4, reason="sums of input_size products in any order: their errors grow with its "
            "square root, as the sums do",
        )  # fmt: skip


class LinearImplementation(OpImplementation):
    """An implementation of `linear` that keeps the weight itself once packed: the layer's own copy is given up."""

    @abstractmethod
    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the weight's rows `ids` [tokens]: [tokens, input_size]; called after `pack`."""


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
        op.pack(layer.weight)  # type: ignore[arg-type]

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = layer.linear_op(x, layer.weight, bias)  # type: ignore[operator]
        return result

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        implementation = layer.linear_op.choice.implementation  # type: ignore[union-attr]
        if isinstance(implementation, LinearImplementation) and not layer.weight.numel():  # type: ignore[operator]
            return implementation.rows(ids)
        return F.embedding(ids, layer.weight)  # type: ignore[arg-type]
