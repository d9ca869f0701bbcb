"""Changes logits before a token is chosen: forbidden tokens, bias, penalties. It does not choose."""

from __future__ import annotations

import torch

from graftlm.ops.custom_op import CustomOp
from graftlm.ops.sampling.inputs import PenaltyEntries, SamplingInputs


@CustomOp.register("adjust_logits")
class AdjustLogits(CustomOp):
    """Apply, in this order: forbidden tokens, logit bias, repetition, frequency and presence penalty.

    Repetition counts prompt and output, the other two the output only. `logits` is overwritten.
    """

    def forward_native(self, logits: torch.Tensor, inputs: SamplingInputs) -> torch.Tensor:
        """Return logits [rows, vocab] in place."""
        if inputs.forbidden is not None:
            logits[inputs.forbidden.rows, inputs.forbidden.token_ids] = float("-inf")
        if inputs.bias is not None:
            assert inputs.bias.values is not None
            logits[inputs.bias.rows, inputs.bias.token_ids] += inputs.bias.values
        if inputs.penalties is not None:
            _penalize(logits, inputs.penalties)
        return logits


def _penalize(logits: torch.Tensor, entries: PenaltyEntries) -> None:
    seen = logits[entries.rows, entries.token_ids]  # [entries]
    seen = torch.where(seen > 0, seen / entries.repetition, seen * entries.repetition)
    seen -= entries.frequency * entries.output_counts
    seen -= entries.presence * (entries.output_counts > 0)
    logits[entries.rows, entries.token_ids] = seen
