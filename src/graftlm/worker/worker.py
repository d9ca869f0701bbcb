"""The worker that devices have in common; a platform's worker subclasses it and overrides what differs.

It knows no device by name: what suits the device is asked from the platform. It does not schedule, and it does not
know how plans reach it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from graftlm.contracts.errors import StartupError
from graftlm.contracts.worker import KVCacheSpec
from graftlm.distributed.groups import destroy_distributed, init_distributed
from graftlm.layers.attention import Attention
from graftlm.models.loader import load_model
from graftlm.platforms import current_platform
from graftlm.platforms.hooks import call_hook
from graftlm.plugins import record
from graftlm.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.attention import AttentionBackend
    from graftlm.contracts.step import StepPlan, StepResult

logger = logging.getLogger(__name__)


class Worker:
    """One process's hold on one device. The methods are called once each, in this order, then `execute_step`."""

    device: torch.device
    model: nn.Module
    model_runner: ModelRunner
    block_size: int

    def __init__(self, config: EngineConfig, *, rank: int, local_rank: int, distributed_init_method: str) -> None:
        self.config = config
        self.rank = rank
        self.local_rank = local_rank
        self.distributed_init_method = distributed_init_method

    def init_device(self) -> None:
        """Take the device, join the process group, seed what plugins may draw from torch's own generator."""
        self.device = self.choose_device()
        call_hook("set_device", self.device)
        init_distributed(
            self.config.parallel.world_size,
            self.rank,
            self.distributed_init_method,
            current_platform.dist_backend,
            device=self.device,
            communicator_cls=lambda: str(call_hook("get_device_communicator_cls")),
        )
        torch.manual_seed(self.config.model.seed % 2**63)

    def choose_device(self) -> torch.device:
        """Name the device of this rank: the platform's only one, or the one with the rank's number."""
        device_type = current_platform.device_type
        return torch.device(device_type) if device_type == "cpu" else torch.device(device_type, self.local_rank)

    def load_model(self) -> None:
        """Build the model and load this rank's share of the weights."""
        self.model = load_model(self.config, self.device)

    def attention_layers(self) -> dict[str, Attention]:
        """Return the model's attention layers by name; an error if it has none, since nothing could be cached."""
        layers = {name: module for name, module in self.model.named_modules() if isinstance(module, Attention)}
        if not layers:
            raise StartupError(
                f"the model class {type(self.model).__qualname__} has no graftlm.layers.Attention layer, so no KV "
                "cache can be given to it; build its attention from that layer"
            )
        return layers

    def attention_backends(self) -> list[type[AttentionBackend]]:
        """Return the distinct attention backend classes of the model, in the order of its layers."""
        return list(dict.fromkeys(layer.backend_cls for layer in self.attention_layers().values()))

    def update_block_size(self) -> int:
        """Ask the platform, once, for a block size that all attention backends of the model accept."""
        backends = self.attention_backends()
        block_size = call_hook("update_block_size_for_backend", self.config, backends)
        if not isinstance(block_size, int) or block_size < 1:
            raise StartupError(
                f"{type(current_platform).__name__}.update_block_size_for_backend returned {block_size!r}; "
                "it must return the number of tokens in a block"
            )
        for backend in backends:
            if block_size not in backend.supported_block_sizes():
                sizes = ", ".join(map(str, backend.supported_block_sizes()))
                raise StartupError(
                    f"--block-size={block_size} does not suit the attention backend {backend.name}; it has: {sizes}"
                )
        owner = self.config.owner_of("cache.block_size")
        record("block_size_decided", block_size=block_size, asked_by=owner, backends=[b.name for b in backends])
        logger.info("block size decided block_size=%d asked_by=%s", block_size, owner)
        self.block_size = block_size
        return block_size

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Describe what one block costs on this rank, all layers together."""
        layers = list(self.attention_layers().values())
        block_bytes = sum(math.prod(self._cache_shape(layer, 1)) * _dtype_of(layer).itemsize for layer in layers)
        first = layers[0]
        return KVCacheSpec(
            num_layers=len(layers),
            num_kv_heads=first.num_kv_heads,
            head_size=first.head_size,
            dtype=first.kv_cache_dtype,
            block_size=self.block_size,
            block_bytes=block_bytes,
        )

    def determine_available_memory(self) -> int:
        """Bytes that the KV cache may take: what the user said, else a share of what the device has left."""
        if self.config.cache.kv_cache_memory_bytes is not None:
            return self.config.cache.kv_cache_memory_bytes
        return int(call_hook("get_available_memory", self.local_rank) * self.config.cache.memory_utilization)

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Give each attention layer its cache, and get ready for steps."""
        for layer in self.attention_layers().values():
            layer.bind_kv_cache(self.allocate_zeros(self._cache_shape(layer, num_blocks), _dtype_of(layer)))
        self.model_runner = self.build_model_runner()
        logger.info(
            "kv cache allocated rank=%d num_blocks=%d block_size=%d", self.rank, num_blocks, self.block_size
        )

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the device for one layer's cache."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def build_model_runner(self) -> ModelRunner:
        return ModelRunner(
            self.config,
            model=self.model,
            backends=self.attention_backends(),
            device=self.device,
            block_size=self.block_size,
            is_driver=self.rank == 0,
        )

    def execute_step(self, plan: StepPlan) -> StepResult | None:
        """Run one step; the result comes from rank 0, the others return None."""
        return self.model_runner.execute_step(plan)

    def shutdown(self) -> None:
        """Leave the process group; safe to call twice, and after a start that failed half-way."""
        destroy_distributed()

    def _cache_shape(self, layer: Attention, num_blocks: int) -> tuple[int, ...]:
        return layer.backend_cls.kv_cache_shape(num_blocks, self.block_size, layer.num_kv_heads, layer.head_size)


def _dtype_of(layer: Attention) -> torch.dtype:
    dtype = getattr(torch, layer.kv_cache_dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StartupError(f"--kv-cache-dtype={layer.kv_cache_dtype!r} is no number format that torch has")
    return dtype
