"""The worker of the CPU platform: compute threads, and memory that is only taken where it is written.

It does not know which model it runs.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import torch

from graftlm.contracts.errors import StartupError
from graftlm.processes.threads import threads_of_worker
from graftlm.worker.worker import Worker

logger = logging.getLogger(__name__)

_CACHE_LINE_BYTES = 64


class CpuWorker(Worker):
    """One share of this machine's cores and memory."""

    def init_device(self) -> None:
        """As every worker; torch computes on this worker's share of the cores only."""
        parallel = self.config.parallel
        num_threads = threads_of_worker(parallel.world_size, parallel.threads_per_worker)
        torch.set_num_threads(num_threads)
        logger.info("compute threads rank=%d num_threads=%d", self.rank, num_threads)
        super().init_device()

    def determine_available_memory(self) -> int:
        """As every worker; what is free is shared by all workers of this machine."""
        available = super().determine_available_memory()
        if self.config.cache.kv_cache_memory_bytes is not None:
            return available
        return available // self.config.parallel.world_size

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros at the start of a cache line that the kernel backs page by page, at the first write.

        `torch.zeros` would write, and so take, all of it at once.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            memory = np.zeros(num_bytes + _CACHE_LINE_BYTES, np.uint8)
        except MemoryError as error:
            raise StartupError(
                f"a part of {num_bytes} bytes of the KV cache does not fit into this machine's memory; lower "
                "--kv-cache-memory-bytes, --memory-utilization or --max-num-seqs"
            ) from error
        start = -memory.ctypes.data % _CACHE_LINE_BYTES
        return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)
