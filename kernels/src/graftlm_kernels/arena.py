"""Memory of kept steps. It knows neither steps nor models."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import torch

_LINE_BYTES = 64


class Arena:
    """Memory that stays, handed out again as soon as no tensor uses it.

    Steps share it: one runs at a time. What is handed out has room for `max_rows` rows, so that steps of all sizes
    find what fits; pages are only taken where they are written.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.arrays: list[npt.NDArray[np.uint8]] = []
        #: A view of each array that does not count as its use.
        self._wholes: list[torch.Tensor] = []
        self._places: dict[int, int] = {}
        self._idle = self._references(self._add(_LINE_BYTES))

    def like(self, tensor: torch.Tensor, *, rows: int = 1) -> torch.Tensor:
        """Return memory for a contiguous tensor of this shape and number format, in a step of so many rows."""
        num_bytes = max(tensor.numel() * tensor.element_size(), 1)
        room = num_bytes
        if tensor.dim() and tensor.size(0) == rows:
            room = num_bytes // rows * max(self.max_rows, rows)
        place = next((i for i in range(len(self.arrays)) if self._suits(i, room)), None)
        memory = torch.from_numpy(self.arrays[self._add(room) if place is None else place])  # holds the array
        return memory[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._places

    def seen_again(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same memory that leaves it free to be handed out; others as they are."""
        place = self._places.get(tensor.untyped_storage().data_ptr())
        if place is None:
            return tensor
        whole = self._wholes[place].view(tensor.dtype)
        return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _add(self, num_bytes: int) -> int:
        array = _aligned(num_bytes)
        self._places[array.ctypes.data] = len(self.arrays)
        self.arrays.append(array)
        self._wholes.append(torch.from_numpy(array))
        return len(self.arrays) - 1

    def _suits(self, place: int, room: int) -> bool:
        return room <= self.arrays[place].nbytes <= 2 * room + 4096 and self._references(place) == self._idle

    def _references(self, place: int) -> int:
        return sys.getrefcount(self.arrays[place])


def _aligned(num_bytes: int) -> npt.NDArray[np.uint8]:
    num_bytes = -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
    memory = np.empty(num_bytes + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + num_bytes]
