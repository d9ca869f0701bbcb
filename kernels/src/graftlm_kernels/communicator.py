"""`shared_memory`: collectives of the ranks of one host over memory that all of them have mapped.

Where the ranks find no common memory, torch.distributed carries everything, and the remark says why. It does not
know which layers call it.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from graftlm.distributed.communicator import TorchCommunicator
from graftlm_kernels import _native
from graftlm_kernels.native import DTYPE_CODES, use_threads

#: Follows the ranks' memory in the file: who does not read it has opened another file.
_PROOF_BYTES = 16
_PATH_BYTES = 1024


class SharedMemoryCommunicator(TorchCommunicator):
    """Sums are added as float32 in the order of ranks and rounded once, so every rank has the same bits.

    Number formats that no kernel adds go through torch.distributed.
    """

    def __init__(self, *, group: dist.ProcessGroup, device: torch.device, name: str) -> None:
        super().__init__(group=group, device=device, name=name)
        use_threads()
        #: The ranks' memory, or None: then everything is left to torch.distributed.
        self.shared: _native.SharedGroup | None = None
        shared, problem = self._meet()
        if self._is_agreed(shared is not None):
            assert shared is not None
            self.shared = shared
            self.remark = f"{self.size} ranks share memory"
            # Bound once: a look-up less per call.
            self._all_reduce, self._gather, self._broadcast = shared.all_reduce, shared.gather, shared.broadcast
        else:
            self.remark = f"torch.distributed over {dist.get_backend(group)}, since {problem or 'another rank did'}"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        code = DTYPE_CODES.get(tensor.dtype)
        if self.shared is None or code is None:
            return super().all_reduce(tensor)
        tensor = tensor.contiguous()
        self._all_reduce(tensor.data_ptr(), tensor.numel(), code)
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if self.shared is None:
            return super().all_gather(tensor, dim)
        return self._joined(tensor.contiguous(), dim, sends=True)

    def gather(self, tensor: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        if self.shared is None:
            return super().gather(tensor, dst, dim)
        tensor = tensor.contiguous()
        if self.rank == dst:
            return self._joined(tensor, dim, sends=False)
        self._gather(tensor.data_ptr(), 1, tensor.numel() * tensor.element_size(), 0, True)
        return None

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        if self.shared is None:
            return super().broadcast(tensor, src)
        tensor = tensor.contiguous()
        self._broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size(), src)
        return tensor

    def _joined(self, tensor: torch.Tensor, dim: int, *, sends: bool) -> torch.Tensor:
        """Return all ranks' tensors along `dim`, each written to its place."""
        shape = list(tensor.shape)
        dim = range(len(shape))[dim]
        row_bytes = math.prod(shape[dim:]) * tensor.element_size()
        rows = math.prod(shape[:dim])
        shape[dim] *= self.size
        joined = torch.empty(shape, dtype=tensor.dtype)
        self._gather(tensor.data_ptr(), rows, row_bytes, joined.data_ptr(), sends)
        return joined

    def _meet(self) -> tuple[_native.SharedGroup | None, str]:
        """Map the memory that rank 0 makes; return None and the reason where this rank cannot.

        When this returns, the other ranks may not have opened the file yet: `_is_agreed` waits for them.
        """
        num_bytes = _native.SharedGroup.bytes_for(self.size)
        path, proof, problem = "", b"", ""
        with contextlib.ExitStack() as held:
            descriptor = -1
            if self.rank == 0:
                try:
                    descriptor, path = held.enter_context(_shared_file(num_bytes + _PROOF_BYTES))
                    proof = secrets.token_bytes(_PROOF_BYTES)
                    os.pwrite(descriptor, proof, num_bytes)
                except OSError as error:
                    problem = f"rank 0 can make no shared memory ({error})"
            path, proof = self._told_by_rank_0(path, proof)
            shared = None
            if path and self.device.type == "cpu":
                try:
                    if self.rank > 0:
                        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                        held.callback(os.close, descriptor)
                    if os.pread(descriptor, _PROOF_BYTES, num_bytes) != proof:
                        raise OSError(f"{path} is another file here: the ranks are not on one host")
                    shared = _native.SharedGroup(descriptor, self.rank, self.size)
                except (OSError, RuntimeError, ValueError) as error:
                    problem = f"rank {self.rank} cannot map rank 0's memory ({error})"
            elif path:
                problem = f"its tensors are on {self.device.type}"
            # Rank 0 keeps the file until everybody has opened it.
            super().all_reduce(torch.zeros(1))
        return shared, problem or ("" if shared is not None else "rank 0 can make no shared memory")

    def _told_by_rank_0(self, path: str, proof: bytes) -> tuple[str, bytes]:
        message = torch.zeros(_PATH_BYTES + _PROOF_BYTES, dtype=torch.uint8)
        name = path.encode()
        if self.rank == 0 and len(name) <= _PATH_BYTES:
            written = torch.frombuffer(bytearray(name.ljust(_PATH_BYTES, b"\0") + proof), dtype=torch.uint8)
            message[: len(written)] = written
        data = bytes(super().broadcast(message).tolist())
        return data[:_PATH_BYTES].rstrip(b"\0").decode(), data[_PATH_BYTES:]

    def _is_agreed(self, mine: bool) -> bool:
        """Tell whether all ranks say so."""
        return int(super().all_reduce(torch.tensor([int(mine)]))) == self.size


@contextlib.contextmanager
def _shared_file(num_bytes: int) -> Iterator[tuple[int, str]]:
    """Make a file of zeros in memory; yield its descriptor, and a path by which others may open it meanwhile."""
    with contextlib.ExitStack() as held:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("graftlm-ranks", os.MFD_CLOEXEC)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
        else:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="graftlm-"))
            path = str(Path(folder) / "ranks")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        held.callback(os.close, descriptor)
        os.ftruncate(descriptor, num_bytes)
        yield descriptor, path
