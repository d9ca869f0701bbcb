"""One tensor of a checkpoint, plain or still quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class QuantizedWeight(Protocol):
    """A matrix [rows, columns] kept in its file's block format.

    Rows may be cut anywhere; columns only at multiples of `block_columns`.
    """

    @property
    def format(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def block_columns(self) -> int: ...

    @property
    def data(self) -> torch.Tensor:
        """[rows, bytes_per_row] uint8, memory-mapped"""

    def narrow(self, dim: int, start: int, length: int) -> QuantizedWeight: ...

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


Weight: TypeAlias = "torch.Tensor | QuantizedWeight"
