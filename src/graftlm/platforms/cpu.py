"""The CPU platform: plain memory, plain torch, and between ranks shared memory or gloo."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind
from graftlm.contracts.points import COMMUNICATORS
from graftlm.platforms import memory
from graftlm.platforms.attention import attention_class_path
from graftlm.platforms.preferred import preferred_class_path
from graftlm.processes.threads import crowding

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig

logger = logging.getLogger(__name__)


class CpuPlatform(Platform):
    """Any machine that runs Python."""

    kind = PlatformKind.CPU
    device_name = "cpu"
    device_type = "cpu"
    op_method = "forward_cpu"
    op_providers = ("graftlm_kernels",)
    dist_backend = "gloo"
    supported_dtypes = ("float32", "bfloat16", "float16")
    #: Attention backends by name, the preferred one first.
    attention_backends: tuple[str, ...] = ("NATIVE_CPU", "TORCH_PAGED")
    #: Communicators by name, the preferred one first; without any, torch.distributed.
    communicators: tuple[str, ...] = ("shared_memory",)

    @classmethod
    def check_and_update_config(cls, config: EngineConfig) -> None:
        if find_spec("graftlm_kernels") is None:  # who disables them knows it
            logger.warning(
                "kernels missing: graftlm-kernels is not installed, so all is computed in plain torch, which is "
                "slower, and quantized weights take their full size; install it, in a checkout by `make install`"
            )
        parallel = config.parallel
        if crowded := crowding(parallel.world_size, parallel.threads_per_worker):
            logger.warning("more threads than cores: %s", crowded)
        if config.parallel.worker_cls == "auto":
            config.parallel.worker_cls = "graftlm.worker.cpu_worker:CpuWorker"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one CPU, and it is always current."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return preferred_class_path(COMMUNICATORS, cls.communicators) or super().get_device_communicator_cls()

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        return attention_class_path(selected_backend, preferred=cls.attention_backends, question=question)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return memory.total_bytes()

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        return memory.available_bytes()
