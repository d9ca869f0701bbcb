"""The platform: facts about the device, and the names of the classes that suit it.

It runs in every process, so it imports no torch.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind
from graftlm_dummy_platform import logger

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig


#: What this device says it has.
MEMORY_BYTES = 1 << 30


class DummyPlatform(Platform):
    """A device that is the CPU under another name. Every hook says when it is called."""

    kind = PlatformKind.OOT
    device_name = "DummyDevice"
    device_type = "cpu"
    op_method = "forward_oot"
    dist_backend = "gloo"

    # In the front end, once each.

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        """Register what flags may name: a quantization method, which every process gets and --help shows.

        The manifest declares its name, since --help runs no plugin.
        """
        from graftlm.layers.quantization import register_quantization_config
        from graftlm_dummy_platform.quantization import DummyInt8

        logger.info("pre_register_and_update called parser=%s", parser is not None)
        register_quantization_config(DummyInt8.name)(DummyInt8)

    @classmethod
    def apply_config_platform_defaults(cls, config: EngineConfig) -> None:
        """Ask for plain ops where the user chose no mode: a default, which the next hook changes again."""
        logger.debug("apply_config_platform_defaults called")
        if config.compilation.base_mode is None:
            config.compilation.set_base_mode("none")

    @classmethod
    def check_and_update_config(cls, config: EngineConfig) -> None:
        """Turn ops on unless the user chose a mode, so that `forward_oot` runs, and name the worker class.

        The user's switches for single ops, such as -rotary_embedding, stay.
        """
        logger.debug("check_and_update_config called")
        if not set(config.asked_by_user("compilation.custom_ops") or ()) & {"all", "none"}:
            config.compilation.set_base_mode("all")
        if config.parallel.worker_cls == "auto":
            config.parallel.worker_cls = "graftlm_dummy_platform.worker:DummyWorker"

    # In each worker, once each; attention once per distinct question.

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Replace a kernel function by its name, before any runs; the path is imported where it is bound."""
        from graftlm.ops import override_kernel

        logger.debug("register_triton_kernel_overrides called")
        override_kernel("paged_attention.decode", "graftlm_dummy_platform.kernels:dummy_decode")

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Name the communicator as its entry point does; a path would do as well."""
        logger.debug("get_device_communicator_cls called")
        return "dummy"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        logger.debug("get_attn_backend_cls called question=%s", question)
        return "graftlm_dummy_platform.attention:DummyAttentionBackend"

    # Facts, in any process. A vendor asks the driver.

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return MEMORY_BYTES

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        return MEMORY_BYTES
