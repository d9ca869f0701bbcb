"""The linear op over plain weights: packed once after loading, multiplied by the native kernels.

It does not know quantized checkpoints; see `quantization.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch

from graftlm.layers.quantization.unquantized import LinearImplementation
from graftlm_kernels.native import DTYPE_CODES, PackedWeight, instruction_set, refusal, take_over

if TYPE_CHECKING:
    from graftlm.ops.custom_op import CustomOp


class Linear(LinearImplementation):
    """`linear` with weights in float32, bfloat16 or float16, in their own format; sums are float32."""

    captured_by: ClassVar[tuple[str, ...]] = ("NATIVE_CPU",)

    def __init__(self, op: CustomOp) -> None:
        super().__init__(op)
        take_over()
        self.packed: PackedWeight | None = None
        self.dtype = torch.float32

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        return refusal(device, dtype) or True

    @classmethod
    def instruction_set(cls) -> str:
        return instruction_set()

    def pack(self, weights: Mapping[str, torch.Tensor]) -> None:
        weight = weights["weight"]
        output_size, input_size = weight.shape
        self.dtype = weight.dtype
        self.packed = PackedWeight(DTYPE_CODES[weight.dtype], output_size=output_size, input_size=input_size)
        self.packed.load(weight.data, offset=0)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.packed is None:  # used before its weights were complete
            native: torch.Tensor = self.op.forward_native(x, weight, bias)
            return native
        if x.dim() != 2:
            return self.packed.multiply(x.flatten(0, -2), bias).view(*x.shape[:-1], -1)
        return self.packed.multiply(x, bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        assert self.packed is not None, "asked only after pack"
        return self.packed.rows(ids, self.dtype)
