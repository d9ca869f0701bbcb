"""The worker of the CPU platform: compute threads, and memory that is only taken where it is written.

It does not know which model it runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap

import torch

from graftlm.contracts.errors import StartupError
from graftlm.processes.threads import threads_of_worker
from graftlm.worker.worker import Worker

logger = logging.getLogger(__name__)


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
        """Return zeros at the start of a page, which the system backs page by page, at the first write.

        `torch.zeros` would write, and so take, all of it at once. Huge pages are declined: all layers reach the end
        of theirs in the same step, which then waited for some 60 MB of zeros.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.zeros(shape, dtype=dtype)
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise StartupError(
                f"a part of {num_bytes} bytes of the KV cache does not fit into this machine's memory; lower "
                "--kv-cache-memory-bytes, --memory-utilization or --max-num-seqs"
            ) from error
        with contextlib.suppress(AttributeError, OSError):  # a system without huge pages has none to decline
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=dtype).view(shape)  # keeps the mapping alive
