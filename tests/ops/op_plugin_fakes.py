"""What an installed plugin package would bring: a replacement, implementations, and modules that fail."""

from __future__ import annotations

from typing import Any

import torch

from graftlm.layers.norm import RMSNorm
from graftlm.layers.rotary import RotaryEmbedding
from graftlm.ops import OpImplementation


class PublishedRotary(RotaryEmbedding):
    """Replaces the default rotary embedding through an entry point."""


class NotARotary(RMSNorm):
    """Published under the wrong key."""


class HalvingSilu(OpImplementation):
    """Wrong on purpose, so that a test sees that it ran."""

    packed: dict[str, Any] | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


class PickyNorm(OpImplementation):
    """Supports sizes that are multiples of 64."""

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        return True if shape[0] % 64 == 0 else f"{shape[0]} is no multiple of 64"

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros_like(x)

    def pack(self, weights: Any) -> None:
        self.packed = dict(weights)
