"""A quantized weight whose blocks are plain numbers, and a group of ranks inside one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graftlm.distributed import groups


class FakeQuantized:
    """Keeps whole numbers as int16; columns can be cut only at multiples of `block_columns`."""

    format = "FAKE"

    def __init__(self, numbers: torch.Tensor, block_columns: int = 4) -> None:
        self.numbers = numbers.to(torch.int16)
        self.block_columns = block_columns
        self.shape = tuple(numbers.shape)

    @property
    def data(self) -> torch.Tensor:
        return self.numbers.view(torch.uint8)

    def narrow(self, dim: int, start: int, length: int) -> FakeQuantized:
        assert dim == 0 or (start % self.block_columns == 0 and length % self.block_columns == 0)
        return FakeQuantized(self.numbers.narrow(dim, start, length), self.block_columns)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        return self.numbers.to(dtype)


def on_each_rank(patch: pytest.MonkeyPatch, size: int, work: Callable[[], Any]) -> list[Any]:
    """Run `work` as each rank of a group without collectives, one after the other."""
    results = []
    for rank in range(size):
        patch.setattr(groups, "_size", size)
        patch.setattr(groups, "_rank", rank)
        results.append(work())
    patch.undo()
    return results


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape).float()
