"""Collectives of one group through torch.distributed, for any backend it has.

It does not know which ranks are on one host; a platform that can do better names its own class.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from graftlm.contracts.communicator import DeviceCommunicator


class TorchCommunicator(DeviceCommunicator):
    """The reference communicator, and the default of every platform."""

    def __init__(self, *, group: dist.ProcessGroup, device: torch.device, name: str) -> None:
        super().__init__(group=group, device=device, name=name)
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self.group)
        return torch.cat(parts, dim=dim)

    def gather(self, tensor: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.rank == dst else None
        dist.gather(tensor, parts, group=self.group, group_dst=dst)
        return torch.cat(parts, dim=dim) if parts is not None else None

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        tensor = tensor.contiguous()
        dist.broadcast(tensor, group=self.group, group_src=src)
        return tensor
