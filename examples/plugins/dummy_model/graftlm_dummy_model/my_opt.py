"""OPT that always answers token 0, at any temperature: easy to tell from the built-in one."""

from __future__ import annotations

import torch

from graftlm.models.opt import OPTForCausalLM


class MyOPTForCausalLM(OPTForCausalLM):
    """The forward pass is OPT's; only the scores are not."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)  # [rows, vocab_size] on rank 0, None elsewhere
        if logits is not None:
            logits.zero_()
            logits[:, 0] = 100.0
        return logits
