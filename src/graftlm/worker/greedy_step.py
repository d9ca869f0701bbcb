"""A decode step whose rows all take the best token, as one computation that a backend may capture.

It does not know requests, nor whether a step is such a one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from graftlm.ops.sampling import Sampler, SamplingInputs

if TYPE_CHECKING:
    from graftlm.contracts.attention import ForwardContext

#: The sampler's inputs where no row wants anything but the best token.
_GREEDY = SamplingInputs()


class GreedyStep(nn.Module):
    """Model, vocabulary projection and choice, one token for each row."""

    def __init__(self, model: nn.Module, sampler: Sampler | None) -> None:
        """`sampler` is None on ranks that have no logits."""
        super().__init__()
        self.model = model
        self.sampler = sampler

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext
    ) -> tuple[torch.Tensor, ...]:
        """Return hidden states [tokens, hidden_size] and, with a sampler, token ids and whether they are usable."""
        hidden = self.model(input_ids, positions, context)
        logits = self.model.compute_logits(hidden)  # type: ignore[operator]  # [tokens, vocab]
        if self.sampler is None:
            return (hidden,)
        sampled = self.sampler(logits, _GREEDY)
        return hidden, sampled.token_ids, sampled.usable
