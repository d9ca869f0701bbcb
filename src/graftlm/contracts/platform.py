"""The contract of a platform: what a machine is and what suits it.

A platform states facts and preferred names; it imports torch only inside hooks that run in workers.
"""

from __future__ import annotations

import argparse
import platform as _platform
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from graftlm.contracts.fixed_platform import FixedOnceDecided

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig


class PlatformKind(StrEnum):
    """The machine families the engine knows; anything else is out of tree."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    TPU = "tpu"
    OOT = "oot"


class AttentionQuestion(msgspec.Struct, frozen=True):
    """What an attention layer asks its platform; equal questions are asked once per process."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: str
    kv_cache_dtype: str
    block_size: int | None
    sliding_window: int | None = None


class Platform(FixedOnceDecided):
    """What every platform answers. A plugin subclasses it and overrides what differs.

    Hooks run where and as often as their docstrings say; each is called with the plugin's name in blame notes.
    Once it is decided, its own methods may set attributes of it; for anybody else that is PlatformFixed.
    """

    kind: ClassVar[PlatformKind] = PlatformKind.OOT
    #: Shown to people and in errors.
    device_name: ClassVar[str] = "unknown"
    #: What `torch.device(...)` takes.
    device_type: ClassVar[str] = "cpu"
    #: The method of a CustomOp that suits this platform, tried before `op_implementations` and `forward_native`.
    op_method: ClassVar[str] = "forward_oot"
    #: Providers of op implementations in order of preference.
    op_providers: ClassVar[tuple[str, ...]] = ()
    #: The backend of torch.distributed.
    dist_backend: ClassVar[str] = "gloo"
    #: Quantization methods that run here; empty allows all.
    supported_quantization: ClassVar[tuple[str, ...]] = ()
    #: Number formats that compute here; the first is the fallback.
    supported_dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")

    # Front end, once per server, in this order.

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        """Register what flags may name, before they are parsed (`None` for the offline LLM)."""

    @classmethod
    def apply_config_platform_defaults(cls, config: EngineConfig) -> None:
        """Set defaults that the user may have overridden; runs before the custom-op base mode is chosen."""

    @classmethod
    def check_and_update_config(cls, config: EngineConfig) -> None:
        """Have the last word: set `config.parallel.worker_cls` if it is 'auto', refuse what cannot run."""

    # Workers, once each.

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Replace kernel functions by name with `graftlm.ops.override_kernel`, before any of them runs."""

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make `device` the current one of this process."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Name the communicator class, as module:Class; asked only in groups of more than one rank."""
        return "graftlm.distributed.communicator:TorchCommunicator"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        """Name the attention backend class; an empty answer means that none fits."""
        return ""

    @classmethod
    def update_block_size_for_backend(cls, config: EngineConfig, backends: list[Any]) -> int:
        """Return a block size that all attention backend classes of the model accept; the user's choice wins."""
        if config.cache.block_size is not None:
            return config.cache.block_size
        sizes: set[int] = (
            set.intersection(*(set(b.supported_block_sizes()) for b in backends)) if backends else {16}
        )
        if not sizes:
            names = ", ".join(b.name for b in backends)
            raise ValueError(f"the attention backends {names} share no block size; choose one with --block-size")
        return 16 if 16 in sizes else min(sizes)

    # Facts, any process.

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of memory of the device."""
        raise NotImplementedError(f"{cls.__name__}.get_device_total_memory")

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        """Bytes of memory that the KV cache may still take."""
        raise NotImplementedError(f"{cls.__name__}.get_available_memory")

    @classmethod
    def get_cpu_architecture(cls) -> str:
        return _platform.machine()

    @classmethod
    def verify_model_arch(cls, architecture: str) -> None:
        """Raise if the architecture cannot run here; front end, once."""

    @classmethod
    def verify_quantization(cls, method: str) -> None:
        if cls.supported_quantization and method not in cls.supported_quantization:
            allowed = ", ".join(cls.supported_quantization)
            raise ValueError(f"--quantization={method!r} does not run on {cls.device_name}; it has: {allowed}")

    def is_cpu(self) -> bool:
        return self.kind == PlatformKind.CPU

    def is_cuda(self) -> bool:
        return self.kind == PlatformKind.CUDA

    def is_out_of_tree(self) -> bool:
        return self.kind == PlatformKind.OOT
