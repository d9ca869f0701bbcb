"""Communicators that are wrong, each in one way that the suite must see."""

from __future__ import annotations

from typing import Any

import torch

from graftlm.contracts.communicator import DeviceCommunicator
from graftlm.distributed.communicator import TorchCommunicator


class Averages(TorchCommunicator):
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(tensor) / self.size


class InReverse(TorchCommunicator):
    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(super().all_gather(tensor, dim).chunk(self.size, dim)[::-1], dim)


class GathersEverywhere(TorchCommunicator):
    def gather(self, tensor: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        return self.all_gather(tensor, dim)


class AlwaysFromZero(TorchCommunicator):
    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        return super().broadcast(tensor, 0)


class OneBuffer(TorchCommunicator):
    """Hands out the same memory for equal shapes."""

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        found = super().all_gather(tensor, dim)
        self.buffers = getattr(self, "buffers", {})
        kept = self.buffers.setdefault((found.numel(), found.dtype), found.flatten())
        return kept.copy_(found.flatten()).view(found.shape)


class WithoutGather(DeviceCommunicator):
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return tensor

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        return tensor


class WantsMore(TorchCommunicator):
    def __init__(self, group: Any, device: torch.device, name: str, ring: int) -> None:
        super().__init__(group=group, device=device, name=name)


class WrongFormat(TorchCommunicator):
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(tensor).double()


class WrongShape(TorchCommunicator):
    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return super().all_gather(tensor, dim).flatten()


class ChangesItsInput(TorchCommunicator):
    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        found = super().all_gather(tensor, dim)
        tensor.zero_()
        return found


class RaisesOnOneRank(TorchCommunicator):
    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        if self.rank == 1:
            raise OSError("link down")
        return super().broadcast(tensor, src)
