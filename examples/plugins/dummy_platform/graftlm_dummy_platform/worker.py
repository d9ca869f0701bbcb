"""The worker of the dummy device; it owns the device, the model runner and the KV cache."""

from __future__ import annotations

import logging

import torch

from graftlm.worker import Worker

logger = logging.getLogger(__name__)


class DummyWorker(Worker):
    """The device-neutral worker; only taking the device differs."""

    def init_device(self) -> None:
        torch.set_num_threads(self.config.parallel.threads_per_worker or 1)
        super().init_device()
        logger.info("dummy worker rank=%d took its device", self.rank)

    def determine_available_memory(self) -> int:
        """Every worker of this machine takes its share of one memory."""
        available = super().determine_available_memory()
        if self.config.cache.kv_cache_memory_bytes is not None:
            return available
        return available // self.config.parallel.world_size
