"""The worker of the dummy device; it owns the device, the model runner and the KV cache."""

from __future__ import annotations

import torch

from graftlm.worker import Worker
from graftlm_dummy_platform import logger


class DummyWorker(Worker):
    """The device-neutral worker; only taking the device, and sharing its memory, differ."""

    def init_device(self) -> None:
        torch.set_num_threads(self.config.parallel.threads_per_worker or 1)
        super().init_device()
        logger.info("device taken rank=%d", self.rank)

    def determine_available_memory(self) -> int:
        """Every worker of this machine takes its share of one memory, unless the user said how much."""
        available = super().determine_available_memory()
        if self.config.cache.kv_cache_memory_bytes is not None:
            return available
        return available // self.config.parallel.world_size
