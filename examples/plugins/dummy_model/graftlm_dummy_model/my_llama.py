"""Llama that always answers token 1, at any temperature; registered as a path, so that only workers import it."""

from __future__ import annotations

import torch

from graftlm.models.llama import LlamaForCausalLM


class MyLlamaForCausalLM(LlamaForCausalLM):
    """The forward pass is Llama's; only the scores are not."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)  # [rows, vocab_size] on rank 0, None elsewhere
        if logits is not None:
            logits.zero_()
            logits[:, 1] = 100.0
        return logits
