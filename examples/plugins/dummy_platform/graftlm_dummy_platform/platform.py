"""The platform: facts about the device, and the names of the classes that suit it.

It runs in every process, so it imports no torch.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind
from graftlm.platforms import memory

logger = logging.getLogger(__name__)


class DummyPlatform(Platform):
    """A device that is the CPU under another name."""

    kind = PlatformKind.OOT
    device_name = "DummyDevice"
    device_type = "cpu"
    op_method = "forward_oot"
    dist_backend = "gloo"

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        logger.info("dummy platform: pre_register_and_update")

    @classmethod
    def apply_config_platform_defaults(cls, config: Any) -> None:
        """Ask for no custom ops; `check_and_update_config` changes that, and the config says who did."""
        config.compilation.custom_ops = ["none"]

    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        """Turn all custom ops on, so that `forward_oot` runs, and name the worker class."""
        config.compilation.custom_ops = ["all"]
        if config.parallel.worker_cls == "auto":
            config.parallel.worker_cls = "graftlm_dummy_platform.worker:DummyWorker"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        return "graftlm_dummy_platform.attention:DummyAttentionBackend"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "graftlm_dummy_platform.communicator:DummyCommunicator"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return memory.total_bytes()

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        return memory.available_bytes()
