"""Tensors of a GGUF file as weights: plain ones as torch tensors over the map, quantized ones in their blocks.

It does not know which tensor belongs to which layer.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from graftlm.models.checkpoints.gguf import FORMATS, BlockFormat, GGUFFile, GGUFTensor
from graftlm.models.checkpoints.gguf_dequantize import DECODERS, dequantize_blocks

if TYPE_CHECKING:
    from graftlm.contracts.weights import Weight

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS = {block.name: block for block in FORMATS.values() if block.name in DECODERS}


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedGGUFWeight:
    """A matrix in GGUF blocks; `data` [rows, bytes_per_row] is memory-mapped, or a copy where rows had to move."""

    format: str
    data: torch.Tensor

    @property
    def block(self) -> BlockFormat:
        return _BLOCKS[self.format]

    @property
    def block_columns(self) -> int:
        return self.block.block_columns

    @property
    def shape(self) -> tuple[int, int]:
        rows, row_bytes = self.data.shape
        return rows, row_bytes // self.block.block_bytes * self.block.block_columns

    def narrow(self, dim: int, start: int, length: int) -> QuantizedGGUFWeight:
        """Cut rows (dim 0) anywhere, or columns (dim 1) between blocks; nothing is copied."""
        if dim == 0:
            return QuantizedGGUFWeight(self.format, self.data.narrow(0, start, length))
        block = self.block
        if start % block.block_columns or length % block.block_columns:
            raise ValueError(
                f"columns {start}:{start + length} of a {self.format} weight cannot be cut out: "
                f"cut at multiples of {block.block_columns}, or dequantize it first"
            )
        return QuantizedGGUFWeight(self.format, self.data.narrow(1, block.bytes_of(start), block.bytes_of(length)))

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix [rows, columns] in `dtype`."""
        rows, columns = self.shape
        block = self.block
        out = torch.empty((rows, columns), dtype=torch.float32)
        blocks = self.data.reshape(-1, block.block_bytes)  # [rows * blocks_per_row, block_bytes]
        dequantize_blocks(self.format, blocks, out.view(-1, block.block_columns))
        return out.to(dtype)


def read_weight(file: GGUFFile, tensor: GGUFTensor) -> Weight:
    """Return one tensor over the map; its pages are read when it is used."""
    flat = torch.frombuffer(file.map, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.offset)
    name = tensor.format.name
    if name in _PLAIN:
        return flat.view(_PLAIN[name]).view(tensor.shape)
    return QuantizedGGUFWeight(name, flat.view(-1, tensor.format.bytes_of(tensor.shape[-1])))


def unpermute_rows(weight: Weight, num_heads: int) -> Weight:
    """Undo the row order in which llama GGUF files keep q and k.

    They lie as interleaved rotary pairs; the layers rotate halves. Only whole rows (or bias elements) move,
    so a quantized weight stays quantized.
    """
    if isinstance(weight, QuantizedGGUFWeight):
        return QuantizedGGUFWeight(weight.format, _unpermute(weight.data, num_heads))
    assert isinstance(weight, torch.Tensor)
    return _unpermute(weight, num_heads)


def _unpermute(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * head_size, …] in pairs -> [heads * head_size, …] in halves."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, -1)  # [heads, head_size / 2, 2, …]
    return pairs.transpose(1, 2).reshape(rows.shape)
