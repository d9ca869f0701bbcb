"""Log-probabilities of given tokens and of the best ones. It does not know which token will be chosen, or why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, random_numbers, roundings
from graftlm.plugins.spelling import counted


@dataclasses.dataclass(slots=True)
class LogprobTensors:
    """Log-probabilities of one token per row, and of the best tokens of the row, best first."""

    logprobs: torch.Tensor
    """[rows] float32"""
    ranks: torch.Tensor
    """[rows] int64; 1 is the best"""
    top_ids: torch.Tensor
    """[rows, top] int64"""
    top_logprobs: torch.Tensor
    """[rows, top] float32"""


@CustomOp.register("ranked_logprobs")
class RankedLogprobs(CustomOp):
    """Log-softmax at a few places, without writing it for the whole vocabulary."""

    def forward_native(self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
        """Rank token_ids [rows] among logits [rows, vocab] float32; neither is changed."""
        normalizer = logits.logsumexp(-1)  # [rows]
        chosen = logits.gather(1, token_ids[:, None])  # [rows, 1]
        ranks = (logits > chosen).sum(-1, dtype=torch.int32).long() + 1  # int32: many times faster on a CPU
        top = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
        return LogprobTensors(
            logprobs=chosen.squeeze(1) - normalizer,
            ranks=ranks,
            top_ids=top.indices,
            top_logprobs=top.values - normalizer[:, None],
        )

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        for rows, vocab, num_top in ((3, 300, 5), (1, 17, 20), (2, 64, 0)):
            logits = random_numbers(generator, rows, vocab, scale=4.0)
            token_ids = torch.arange(rows, device=generator.device) * 5
            yield OpExample(f"{counted(rows, 'row')} of {vocab}, {num_top} best", (logits, token_ids, num_top))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return roundings(torch.float32, full=64, half=64, reason="one sum of exponentials over the vocabulary")
