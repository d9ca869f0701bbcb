"""Joins the ranks' parts of the logits on rank 0 and cuts the padding off; does not sample."""

from __future__ import annotations

import torch

from graftlm.distributed.groups import tp_gather
from graftlm.layers.embedding import ParallelLMHead
from graftlm.ops.pluggable import PluggableLayer


class LogitsProcessor(PluggableLayer):
    """The last layer of a model: hidden states to logits."""

    def __init__(self, vocab_size: int, *, scale: float = 1.0, soft_cap: float | None = None) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.scale = scale
        self.soft_cap = soft_cap

    def forward(self, lm_head: ParallelLMHead, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return logits [rows, vocab_size] on rank 0 of the group, None elsewhere."""
        logits = tp_gather(lm_head(hidden_states))
        if logits is None:
            return None
        if logits.shape[-1] != self.vocab_size:
            logits = logits[..., : self.vocab_size]
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale == 1.0 else logits * self.scale
