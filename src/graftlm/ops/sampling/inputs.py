"""What sampling needs beside the logits: one tensor per parameter, None where no row uses it.

It does not know how the tensors are kept from step to step.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(slots=True)
class LogitEntries:
    """Single places of the logits, each named once: `logits[rows[i], token_ids[i]]`."""

    rows: torch.Tensor
    """[entries] int64"""
    token_ids: torch.Tensor
    """[entries] int64"""
    values: torch.Tensor | None = None
    """[entries] float32; None where the place alone says it"""


@dataclasses.dataclass(slots=True)
class PenaltyEntries:
    """The distinct tokens that penalized rows have seen, and the penalties of each one's row.

    Sparse: the cost grows with the tokens seen, not with rows times vocabulary.
    """

    rows: torch.Tensor
    """[entries] int64"""
    token_ids: torch.Tensor
    """[entries] int64"""
    output_counts: torch.Tensor
    """[entries] float32: how often the row's output has the token; 0 if only its prompt has it"""
    repetition: torch.Tensor
    """[entries] float32"""
    frequency: torch.Tensor
    """[entries] float32"""
    presence: torch.Tensor
    """[entries] float32"""


@dataclasses.dataclass(slots=True)
class SamplingInputs:
    """One step's parameters, row by row. All None is a greedy batch."""

    forbidden: LogitEntries | None = None
    """tokens that a row may not choose now"""
    bias: LogitEntries | None = None
    """values added to logits"""
    penalties: PenaltyEntries | None = None
    temperature: torch.Tensor | None = None
    """[rows] float32; 0 is greedy. None: all rows are"""
    uniforms: torch.Tensor | None = None
    """[rows] float64 in [0, 1): each row's random number; given with `temperature`"""
    top_k: torch.Tensor | None = None
    """[rows] int64; 0 keeps all"""
    top_p: torch.Tensor | None = None
    """[rows] float64; 1 keeps all"""
    min_p: torch.Tensor | None = None
    """[rows] float32; 0 keeps all"""
    logprob_rows: torch.Tensor | None = None
    """[wanted] int64: the rows whose log-probabilities are wanted"""
    num_top_logprobs: int = 0
    """the most alternatives that any of them wants"""

    @property
    def adjusts(self) -> bool:
        """Whether any logit is changed before tokens are chosen."""
        return self.forbidden is not None or self.bias is not None or self.penalties is not None
