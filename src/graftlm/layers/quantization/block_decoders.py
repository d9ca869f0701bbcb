"""Turns blocks of GGUF weights into float32, one function per format.

Each takes blocks [num_blocks, block_bytes] uint8 and fills out [num_blocks, block_columns] float32.
It does not know of files, rows or tensor names.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Blocks decoded at once, so that temporaries stay in the processor's cache.
_CHUNK_BLOCKS = 16_384

Decoder = Callable[[torch.Tensor, torch.Tensor], None]


def dequantize_blocks(format: str, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out` [num_blocks, block_columns] float32 from `blocks` [num_blocks, block_bytes] uint8."""
    decode = DECODERS[format]
    for start in range(0, blocks.shape[0], _CHUNK_BLOCKS):
        decode(blocks[start : start + _CHUNK_BLOCKS], out[start : start + _CHUNK_BLOCKS])


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Read the float16 at byte `start` of each block: [num_blocks, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """Fill out [num_blocks, 32]: low nibbles of the 16 packed bytes first, then their high nibbles."""
    out[:, :16] = packed & 0x0F
    out[:, 16:] = packed >> 4


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return [num_blocks, 32]: 16 where the weight's fifth bit is set in the 4 packed bytes, else 0."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (packed.unsqueeze(-1) >> shifts) & 1  # [num_blocks, 4, 8]
    return bits.reshape(packed.shape[0], 32) << 4


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 4:], out)
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 6:], out)
    out.add_(_fifth_bits(blocks[:, 2:6])).sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 8:], out)
    out.add_(_fifth_bits(blocks[:, 4:8])).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8))
    out.mul_(_half(blocks, 0))


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    # 256 weights in 8 groups of 32; a group's 6-bit scale and minimum lie in 12 bytes: a (4), b (4), c (4).
    num_blocks = blocks.shape[0]
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([a & 0x3F, (c & 0x0F) | ((a >> 2) & 0x30)], dim=1)  # [num_blocks, 8]
    minima = torch.cat([b & 0x3F, (c >> 4) | ((b >> 2) & 0x30)], dim=1)  # [num_blocks, 8]
    scale = (_half(blocks, 0) * scales.float()).unsqueeze(-1)  # [num_blocks, 8, 1]
    minimum = (_half(blocks, 2) * minima.float()).unsqueeze(-1)  # [num_blocks, 8, 1]
    packed = blocks[:, 16:].reshape(num_blocks, 4, 32)
    groups = out.view(num_blocks, 4, 2, 32)
    groups[:, :, 0] = packed & 0x0F
    groups[:, :, 1] = packed >> 4
    out.view(num_blocks, 8, 32).mul_(scale).sub_(minimum)


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    # 256 weights in 16 groups of 16 with an int8 scale each; low 4 bits in 128 bytes, high 2 bits in 64.
    num_blocks = blocks.shape[0]
    low = blocks[:, :128].reshape(num_blocks, 2, 1, 64)
    low = torch.cat([low & 0x0F, low >> 4], dim=2).reshape(num_blocks, 8, 32)
    high = blocks[:, 128:192].reshape(num_blocks, 2, 1, 32)
    high = torch.cat([(high >> shift) & 0x03 for shift in (0, 2, 4, 6)], dim=2).reshape(num_blocks, 8, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()  # [num_blocks, 16]
    scale = (_half(blocks, 208) * scales).unsqueeze(-1)  # [num_blocks, 16, 1]
    out.view(num_blocks, 8, 32).copy_(low | (high << 4))
    out.view(num_blocks, 16, 16).sub_(32).mul_(scale)


DECODERS: dict[str, Decoder] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
