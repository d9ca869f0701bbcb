"""The replaced rotary embedding: importing this module replaces it."""

from __future__ import annotations

import torch

from graftlm.layers.rotary import RotaryEmbedding


@RotaryEmbedding.register_oot
class DummyRotaryEmbedding(RotaryEmbedding):
    """Built wherever a model builds `RotaryEmbedding`; subclasses of it, such as scaled ones, stay as they are."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.addition_config = True

    def forward_oot(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward_oot(positions, query, key)
