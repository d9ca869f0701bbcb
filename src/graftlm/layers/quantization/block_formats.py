"""The block formats of GGUF by name: how many columns of a row share a block, and its bytes; imports no torch.

It does not know how a block's bytes are read, nor how files number the formats.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFormat:
    """How many columns of a row share one block, and how many bytes that block takes."""

    name: str
    block_columns: int
    block_bytes: int

    def bytes_of(self, columns: int) -> int:
        return columns // self.block_columns * self.block_bytes


#: Plain formats are blocks of one column.
BLOCK_FORMATS: dict[str, BlockFormat] = {
    name: BlockFormat(name, block_columns, block_bytes)
    for name, block_columns, block_bytes in (
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q8_0", 32, 34),
        ("Q4_K", 256, 144),
        ("Q6_K", 256, 210),
    )
}
