"""A matrix that is still in GGUF's blocks, from a file or quantized here; it does not know of files or layers."""

from __future__ import annotations

import dataclasses

import torch

from graftlm.layers.quantization.block_decoders import dequantize_blocks
from graftlm.layers.quantization.block_formats import BLOCK_FORMATS, BlockFormat


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedGGUFWeight:
    """A matrix in GGUF blocks; `data` [rows, bytes_per_row] is memory-mapped, or a copy where rows had to move."""

    format: str
    data: torch.Tensor

    @property
    def block(self) -> BlockFormat:
        return BLOCK_FORMATS[self.format]

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
