"""Parameters in the number format and on the device of the build, and checkpoint tensors cut for this rank.

It does not know layers.
"""

from __future__ import annotations

from typing import Any

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.weights import QuantizedWeight, Weight
from graftlm.ops.build import find_build


class ShapeMismatch(ModelMismatch):
    """A checkpoint tensor that does not fit the layer it is for."""

    def __init__(self, layer: str, *, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        super().__init__(
            f"{layer}: the checkpoint's tensor has shape {list(found)}, the model expects {list(expected)}; "
            "its config does not belong to these weights"
        )


def build_dtype() -> torch.dtype:
    """Return the number format of the build in progress, else torch's default."""
    build = find_build()
    return torch.get_default_dtype() if build is None else build.dtype


def build_device() -> torch.device:
    """Return the device of the build in progress, else the CPU."""
    build = find_build()
    return torch.device("cpu") if build is None else build.device


def empty_parameter(*shape: int, dtype: torch.dtype | None = None) -> torch.nn.Parameter:
    """Return a parameter without a value; its memory is taken when it is written."""
    data = torch.empty(shape, dtype=dtype or build_dtype(), device=build_device())
    return torch.nn.Parameter(data, requires_grad=False)


def narrow(weight: Weight, dim: int, *, start: int, length: int) -> Weight:
    """Cut rows (dim 0) or columns (dim 1); a quantized matrix is dequantized only where its blocks force it."""
    if isinstance(weight, torch.Tensor):
        return weight.narrow(dim, start, length)
    if start == 0 and length == weight.shape[dim]:
        return weight
    if dim == 1 and (start % weight.block_columns or length % weight.block_columns):
        return weight.dequantize(build_dtype()).narrow(dim, start, length)
    return weight.narrow(dim, start, length)


def as_tensor(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return plain numbers; those of a quantized matrix in `dtype`. Raises ModelMismatch for whole numbers."""
    if isinstance(weight, QuantizedWeight):
        return weight.dequantize(dtype)
    if dtype.is_floating_point and not weight.is_floating_point():
        raise ModelMismatch(
            f"the checkpoint's tensor holds {str(weight.dtype).removeprefix('torch.')} numbers where the model "
            f"computes in {str(dtype).removeprefix('torch.')}: it is quantized, and nothing says how; name the "
            "method with --quantization"
        )
    return weight


def give_rows(layer: Any, weight: Weight, *, row_offset: int) -> None:
    """Hand rows to the layer's linear method, and note the block format in which they came."""
    if isinstance(weight, QuantizedWeight):
        layer.given_formats.add(weight.format)
    layer.linear_method.load_weight(layer, weight, row_offset=row_offset)


def check_shape(layer: str, weight: Weight, expected: tuple[int, ...]) -> None:
    """Raise ShapeMismatch unless the whole, uncut tensor has the expected shape."""
    if tuple(weight.shape) != expected:
        raise ShapeMismatch(layer, found=tuple(weight.shape), expected=expected)
