"""Logits to tokens, in one call per step. It does not know requests or processes."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from graftlm.ops.sampling.adjust import AdjustLogits
from graftlm.ops.sampling.choose import ChooseTokens
from graftlm.ops.sampling.inputs import SamplingInputs
from graftlm.ops.sampling.logprobs import LogprobTensors, RankedLogprobs


@dataclasses.dataclass(slots=True)
class Sampled:
    """What one step chose."""

    token_ids: torch.Tensor
    """[rows] int64"""
    usable: torch.Tensor
    """[rows] bool; False where the logits had no meaning, and neither has the token"""
    logprobs: LogprobTensors | None
    """of `SamplingInputs.logprob_rows`, in their order"""


class Sampler(nn.Module):
    """Adjust, choose, and report log-probabilities.

    Reported log-probabilities are the model's own: of the raw logits, before bias, penalties, temperature and
    filters, as OpenAI-compatible servers do by default. They can therefore be low for a chosen token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.adjust_logits = AdjustLogits()
        self.choose_tokens = ChooseTokens()
        self.ranked_logprobs = RankedLogprobs()

    def forward(self, logits: torch.Tensor, inputs: SamplingInputs) -> Sampled:
        """Choose a token for each row of logits [rows, vocab], which may be overwritten."""
        logits = logits.float()
        raw = None
        if inputs.logprob_rows is not None:
            raw = logits[inputs.logprob_rows]  # a copy, which adjusting does not reach
        if inputs.adjusts:
            logits = self.adjust_logits(logits, inputs)
        token_ids, usable = self.choose_tokens(logits, inputs)
        logprobs = None
        if raw is not None:
            assert inputs.logprob_rows is not None
            logprobs = self.ranked_logprobs(raw, token_ids[inputs.logprob_rows], inputs.num_top_logprobs)
        return Sampled(token_ids, usable, logprobs)
