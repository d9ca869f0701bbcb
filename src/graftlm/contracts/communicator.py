"""The contract of a device communicator: the collectives of one process group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class DeviceCommunicator(ABC):
    """Collectives over one group of more than one rank, constructed once in each member."""

    #: How it carries tensors, once built, in a few words; `graftlm plugins explain communicator` shows it.
    remark: str = ""

    def __init__(self, *, group: dist.ProcessGroup, device: torch.device, name: str) -> None:
        self.group = group
        self.device = device
        self.name = name

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks; the input may be overwritten."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return all ranks' tensors concatenated along `dim`, in rank order."""

    @abstractmethod
    def gather(self, tensor: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """As all_gather, on rank `dst` only; None elsewhere."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor: ...
