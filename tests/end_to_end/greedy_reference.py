"""What transformers answers greedily in fp32, and the rule by which another engine's answer equals it.

Rounding decides between two tokens whose logits are closer than 1e-3. So answers are compared up to the first such
step: before it ids are equal, at it the log-probabilities of the chosen tokens agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

CLOSE_MARGIN = 1e-3
#: At most 1 prompt in 8 may reach a close step before this token.
EARLY = 16


@dataclasses.dataclass(frozen=True)
class Reference:
    """The reference's greedy continuation of one prompt; it does not stop at an end-of-sequence token."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    margins: list[float]
    """difference of the two best logits at each step"""

    @property
    def num_sure(self) -> int:
        """Steps before the first at which rounding may decide."""
        return next((i for i, m in enumerate(self.margins) if m < CLOSE_MARGIN), len(self.margins))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the server said."""

    token_ids: list[int]
    logprobs: list[float]
    cached_tokens: int
    finish_reason: str


@torch.inference_mode()
def continue_greedily(model: Any, prompts: Sequence[list[int]], *, max_tokens: int) -> list[Reference]:
    """Continue prompts with the model's own `generate`, side by side: shorter ones are padded on the left."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    width = max(map(len, prompts))
    generated = model.generate(
        torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        do_sample=False, max_new_tokens=max_tokens, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    output_ids = generated.sequences[:, width:]  # [prompts, max_tokens]
    logits = torch.stack(generated.logits, dim=1)  # [prompts, max_tokens, vocab]
    best = logits.topk(2).values
    margins = best[..., 0] - best[..., 1]
    chosen = logits.log_softmax(-1).gather(2, output_ids[..., None])[..., 0]
    assert output_ids.shape == (len(prompts), max_tokens)
    return [
        Reference(prompt, *(rows[i].tolist() for rows in (output_ids, chosen, margins)))
        for i, prompt in enumerate(prompts)
    ]


def assert_equal_while_sure(answers: Sequence[Answer], references: Sequence[Reference]) -> None:
    """Apply the rule to all answers."""
    for index, (answer, reference) in enumerate(zip(answers, references, strict=True)):
        sure = reference.num_sure
        assert len(answer.token_ids) == len(reference.token_ids)
        assert answer.token_ids[:sure] == reference.token_ids[:sure], f"prompt {index}"
        worst = max(
            abs(a - b) for a, b in zip(answer.logprobs[: sure + 1], reference.logprobs[: sure + 1], strict=True)
        )
        assert worst < CLOSE_MARGIN, f"prompt {index}: log-probabilities differ by {worst}"


def assert_few_end_early(references: Sequence[Reference]) -> None:
    """The prompts are fit to compare with."""
    early = [index for index, reference in enumerate(references) if reference.num_sure < EARLY]
    assert len(early) * 8 <= len(references), f"prompts {early} reach a close step before token {EARLY}"
