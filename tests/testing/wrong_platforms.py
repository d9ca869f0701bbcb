"""Platforms, detectors and general plugins that are wrong, each in one way that the suites must see."""

from __future__ import annotations

import os
import time
from typing import Any

from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind

_BACKEND = "graftlm.ops.attention.torch_paged:TorchPagedAttention"


class Sound(Platform):
    """A platform without a fault, which the others spoil."""

    kind = PlatformKind.OOT
    device_name = "test device"

    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        if config.parallel.worker_cls == "auto":
            config.parallel.worker_cls = "graftlm.worker.cpu_worker:CpuWorker"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        return _BACKEND

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 1 << 30

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        return 1 << 29


class WithProviders(Sound):
    op_providers = ("acme",)


def with_providers() -> str:
    return "wrong_platforms:WithProviders"


class NoWorker(Sound):
    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        """Leaves worker_cls 'auto'."""


class GrowsEachTime(Sound):
    @classmethod
    def apply_config_platform_defaults(cls, config: Any) -> None:
        config.compilation.custom_ops = [*config.compilation.custom_ops, "+rms_norm"]


class OverridesTheUser(Sound):
    @classmethod
    def apply_config_platform_defaults(cls, config: Any) -> None:
        config.compilation.custom_ops = ["all"]


class WrongSignature(Sound):
    @classmethod
    def get_attn_backend_cls(cls, question: AttentionQuestion) -> str:  # type: ignore[override]
        return _BACKEND


class MissingBackend(Sound):
    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        return "graftlm.ops.attention.torch_paged:NoSuchBackend"


class WrongBlockSize(Sound):
    @classmethod
    def update_block_size_for_backend(cls, config: Any, backends: list[Any]) -> int:
        return 17


class BlockSizeAgainstTheUser(Sound):
    @classmethod
    def update_block_size_for_backend(cls, config: Any, backends: list[Any]) -> int:
        return 16


class RaisesInAHook(Sound):
    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        raise RuntimeError("no driver")


class MemoryInGigabytes(Sound):
    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 64


class OfTheEngine(Sound):
    kind = PlatformKind.CPU


class ListsInsteadOfTuples(Sound):
    supported_dtypes = ["float32"]  # type: ignore[assignment]


class DiffersBetweenProcesses(Sound):
    device_name = f"device {os.getpid()}"


_answers = iter([None, "wrong_platforms:Sound", None, "wrong_platforms:Sound"])


def changes_its_mind() -> str | None:
    return next(_answers, None)


def slow() -> str:
    time.sleep(0.3)
    return "wrong_platforms:Sound"


def starts_the_device() -> str:
    import torch

    torch.zeros(1)
    return "wrong_platforms:Sound"


def names_another() -> str:
    return "wrong_platforms:NoWorker"


def register_by_process() -> None:
    """Registers what depends on the hash seed."""
    from graftlm.models import ModelRegistry

    ModelRegistry.register_model(f"Model{hash('seed') % 1000}", "wrong_models:KeepsState")


def register_and_raise() -> None:
    from graftlm.models import ModelRegistry

    ModelRegistry.register_model("HalfRegistered", "wrong_models:KeepsState")
    raise RuntimeError("the second half is missing")


def wants_an_argument(registry: Any) -> None:
    """Not as the point wants it."""
