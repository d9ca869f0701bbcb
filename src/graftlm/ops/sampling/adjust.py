"""Changes logits before a token is chosen: forbidden tokens, bias, penalties. It does not choose."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, random_numbers, roundings
from graftlm.ops.sampling.inputs import LogitEntries, PenaltyEntries, SamplingInputs


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

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        device = generator.device
        rows = torch.tensor([0, 0, 2], device=device)
        token_ids = torch.tensor([3, 63, 0], device=device)
        numbers = random_numbers(generator, 6, 3)
        entries = LogitEntries(rows, token_ids)
        bias = LogitEntries(rows, token_ids, numbers[0])
        penalties = PenaltyEntries(
            rows, token_ids, output_counts=torch.tensor([0.0, 1.0, 5.0], device=device),
            repetition=numbers[1].abs() + 0.5, frequency=numbers[2], presence=numbers[3],
        )  # fmt: skip
        for label, inputs in (
            ("forbidden", SamplingInputs(forbidden=entries)),
            ("bias", SamplingInputs(bias=bias)),
            ("penalties", SamplingInputs(penalties=penalties)),
            ("bias, then penalties", SamplingInputs(bias=bias, penalties=penalties)),
        ):
            yield OpExample(label, (random_numbers(generator, 3, 64), inputs), may_overwrite=(0,))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return roundings(torch.float32, full=8, half=8, reason="one product or quotient and three sums per logit")


def _penalize(logits: torch.Tensor, entries: PenaltyEntries) -> None:
    seen = logits[entries.rows, entries.token_ids]  # [entries]
    seen = torch.where(seen > 0, seen / entries.repetition, seen * entries.repetition)
    seen -= entries.frequency * entries.output_counts
    seen -= entries.presence * (entries.output_counts > 0)
    logits[entries.rows, entries.token_ids] = seen
