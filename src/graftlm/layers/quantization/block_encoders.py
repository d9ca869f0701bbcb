"""Turns rows of numbers into blocks of Q8_0 and Q4_0, as the formats define it; knows no layer.

A block of 32 numbers keeps one float16 scale d and 32 whole numbers q. Q8_0 means q * d with d = max|x| / 127.
Q4_0 means (q - 8) * d with d = x / -8 for the x of largest magnitude, so that this one is kept best.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers.quantization.block_formats import BLOCK_FORMATS
from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight

#: Blocks encoded at once, so that temporaries stay in the processor's cache.
_CHUNK_BLOCKS = 8_192


def quantize_rows(rows: torch.Tensor, format: str) -> QuantizedGGUFWeight:
    """Return `rows` [rows, columns] in a format of ENCODERS; columns are whole blocks.

    Raises ModelMismatch where a number is infinite, none, or too large for a float16 scale.
    """
    block, encode = BLOCK_FORMATS[format], ENCODERS[format]
    count, columns = rows.shape
    if columns % block.block_columns:
        raise ValueError(f"{columns} columns are no whole blocks of {block.block_columns}")
    numbers = rows.reshape(-1, block.block_columns)  # [blocks, 32]
    out = torch.empty((numbers.shape[0], block.block_bytes), dtype=torch.uint8)
    for start in range(0, numbers.shape[0], _CHUNK_BLOCKS):
        encode(numbers[start : start + _CHUNK_BLOCKS].float(), out[start : start + _CHUNK_BLOCKS])
    scales = out[:, :2].contiguous().view(torch.float16)
    if not bool(scales.isfinite().all()):
        largest = float(rows.abs().max())
        raise ModelMismatch(
            f"a weight of magnitude {largest:g} has no place in {format}, whose scales are float16; "
            "serve this checkpoint without --quantization"
        )
    return QuantizedGGUFWeight(format, out.view(count, -1))


def _put_scale(scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write d [blocks, 1] to the blocks and return 1 / d, or 0 for a block of (nearly) zeros."""
    out[:, :2] = scale.to(torch.float16).view(torch.uint8)
    return torch.where(scale.abs() < torch.finfo(torch.float32).tiny, 0.0, 1.0 / scale)


def _q8_0(numbers: torch.Tensor, out: torch.Tensor) -> None:
    inverse = _put_scale(numbers.abs().amax(dim=1, keepdim=True) / 127, out)
    scaled = numbers * inverse
    # Halves go away from zero, where torch.round would take the even neighbour; a conversion cuts the fraction off.
    whole = scaled.to(torch.int8)
    whole += ((scaled - whole) * 2).to(torch.int8)
    out[:, 2:] = whole.view(torch.uint8)


def _q4_0(numbers: torch.Tensor, out: torch.Tensor) -> None:
    place = numbers.abs().argmax(dim=1, keepdim=True)
    inverse = _put_scale(numbers.gather(1, place) / -8, out)
    # Rounded twice, after the product and after the sum: one fused operation would differ at numbers half-way.
    whole = (numbers * inverse).add_(8.5).clamp_(0, 15).to(torch.uint8)  # [blocks, 32]
    out[:, 2:] = whole[:, :16] | (whole[:, 16:] << 4)


#: Format -> fills blocks [blocks, block_bytes] uint8 from numbers [blocks, 32] float32.
ENCODERS: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {"Q8_0": _q8_0, "Q4_0": _q4_0}
