"""Norm, activation and rotary embedding by native kernels, each in one pass over its numbers.

What a kernel does not take (strided last axes, other number formats) goes to the op's own reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from graftlm.ops.implementation import OpImplementation
from graftlm_kernels import _native
from graftlm_kernels.native import DTYPE_CODES, head_refusal, instruction_set, refusal, use_threads

if TYPE_CHECKING:
    from graftlm.ops.custom_op import CustomOp


class CpuOp(OpImplementation):
    """What the ops here share."""

    captured_by: ClassVar[tuple[str, ...]] = ("NATIVE_CPU",)

    def __init__(self, op: CustomOp) -> None:
        super().__init__(op)
        self.op: Any = op
        use_threads()

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        return refusal(device, dtype) or True

    @classmethod
    def instruction_set(cls) -> str:
        return instruction_set()


class RMSNorm(CpuOp):
    """`rms_norm`; the residual is overwritten with the sum."""

    weight: torch.Tensor | None = None

    def pack(self, weights: Mapping[str, torch.Tensor]) -> None:
        weight = weights["weight"].data
        if weight.is_contiguous() and weight.dtype in DTYPE_CODES:
            self.weight = weight
            self._dtype, self._address = weight.dtype, weight.data_ptr()
            self._code, self._columns, self._eps = DTYPE_CODES[weight.dtype], weight.numel(), float(self.op.eps)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if self.weight is None or x.dtype is not self._dtype or not x.is_contiguous():
            return self.op.forward_native(x, residual)
        columns = self._columns
        y = torch.empty_like(x)
        rows = x.numel() // columns
        if residual is None:
            _native.rms_norm(
                x.data_ptr(), columns, 0, 0, self._address, y.data_ptr(), rows, columns, self._eps, self._code
            )
            return y
        if residual.dtype is not self._dtype or not residual.is_contiguous():
            return self.op.forward_native(x, residual)
        _native.rms_norm(
            x.data_ptr(), columns, residual.data_ptr(), columns, self._address, y.data_ptr(), rows, columns,
            self._eps, self._code,
        )  # fmt: skip
        return y, residual


class LayerNorm(CpuOp):
    """`layer_norm`, with or without weight and bias; the residual is overwritten with the sum."""

    def __init__(self, op: CustomOp) -> None:
        super().__init__(op)
        #: Number formats that are computed here, known once the weights are.
        self._codes: dict[torch.dtype, int] = {}
        self._kept: list[torch.Tensor] = []

    def pack(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._kept = [tensor.data for tensor in weights.values()]
        dtypes = {tensor.dtype for tensor in self._kept} or set(DTYPE_CODES)
        if all(tensor.is_contiguous() for tensor in self._kept) and (len(dtypes) == 1 or not self._kept):
            self._codes = {dtype: code for dtype, code in DTYPE_CODES.items() if dtype in dtypes}
        self._weight, self._bias = (
            weights[name].data_ptr() if name in weights else 0 for name in ("weight", "bias")
        )
        self._columns, self._eps = int(self.op.hidden_size), float(self.op.eps)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        code, added = self._codes.get(x.dtype), 0
        if code is None or not x.is_contiguous():
            return self.op.forward_native(x, residual)
        if residual is not None:
            if residual.dtype is not x.dtype or not residual.is_contiguous():
                return self.op.forward_native(x, residual)
            added = residual.data_ptr()
        columns = self._columns
        y = torch.empty_like(x)
        _native.layer_norm(
            x.data_ptr(), columns, added, columns, self._weight, self._bias, y.data_ptr(), x.numel() // columns,
            columns, self._eps, code,
        )  # fmt: skip
        return y if residual is None else (y, residual)


class SiluAndMul(CpuOp):
    """`silu_and_mul`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        code = DTYPE_CODES.get(x.dtype)
        if code is None or x.dim() != 2 or x.stride(1) != 1:
            native: torch.Tensor = self.op.forward_native(x)
            return native
        rows, columns = x.size(0), x.size(1) // 2
        y = torch.empty((rows, columns), dtype=x.dtype)
        _native.silu_and_mul(x.data_ptr(), x.stride(0), y.data_ptr(), rows, columns, code)
        return y


class ReLU(CpuOp):
    """`relu`, in place."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        code = DTYPE_CODES.get(x.dtype)
        if code is None or not x.is_contiguous():
            native: torch.Tensor = self.op.forward_native(x)
            return native
        _native.relu(x.data_ptr(), x.numel(), code)
        return x


class RotaryEmbedding(CpuOp):
    """`rotary_embedding`; attention layers whose backend is NATIVE_CPU rotate while they read instead."""

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        wrong_size = head_refusal(shape[0]) if shape else None
        return refusal(device, dtype) or wrong_size or True

    def __call__(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if query.dim() != 2 or query.stride(1) != 1 or key.stride(1) != 1 or query.dtype not in DTYPE_CODES:
            native: tuple[torch.Tensor, torch.Tensor] = self.op.forward_native(positions, query, key)
            return native
        positions = positions.to(torch.int64).contiguous()
        return self._rotate(query, positions), self._rotate(key, positions)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        op, table = self.op, self.op.cos_sin_cache
        y = torch.empty(x.shape, dtype=x.dtype)
        _native.rotate(
            x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), x.size(0), x.size(1) // op.head_size,
            op.head_size, DTYPE_CODES[x.dtype], table.data_ptr(), DTYPE_CODES[table.dtype], positions.data_ptr(),
            op.rotary_dim, op.is_neox_style,
        )  # fmt: skip
        return y
