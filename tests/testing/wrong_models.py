"""Model classes that are wrong, each in one way that the suite must see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from which_process import PROCESS_NUMBER

from graftlm.models.llama import LlamaForCausalLM


class WrongShape(LlamaForCausalLM):
    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)
        return None if logits is None else logits[..., :-1]


class PositionsFromZero(LlamaForCausalLM):
    """Counts positions anew in each step: wrong as soon as a prompt is cut."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: Any) -> torch.Tensor:
        starts = context.attention.query_start[:-1].long()
        lengths = torch.tensor(context.attention.query_lens_list)
        fresh = torch.arange(len(input_ids)) - starts.repeat_interleave(lengths)
        return super().forward(input_ids, fresh, context)


class LooksAround(LlamaForCausalLM):
    """Normalizes over the whole batch, neighbours and later tokens included."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: Any) -> torch.Tensor:
        hidden = super().forward(input_ids, positions, context)
        return hidden - 0.1 * hidden.mean(0, keepdim=True)


class KeepsState(LlamaForCausalLM):
    """Adds a little of the last step's last token."""

    last: torch.Tensor | None = None

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: Any) -> torch.Tensor:
        hidden = super().forward(input_ids, positions, context)
        before, self.last = self.last, hidden[-1].clone()
        return hidden if before is None else hidden + 1e-6 * before


class MutatesItsInput(LlamaForCausalLM):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: Any) -> torch.Tensor:
        hidden = super().forward(input_ids, positions, context)
        positions += 1
        return hidden


class ForgetsWeights(LlamaForCausalLM):
    """Says that everything is loaded, whatever the checkpoint has."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        own = dict(self.named_parameters())
        super().load_weights(
            (name, weight) for name, weight in weights if name.replace("model.no_such_layer", "") == name
        )
        for module in self.modules():
            if hasattr(module, "_waiting"):
                module._waiting = type(module._waiting)()
        return set(own)


class DiffersBetweenProcesses(LlamaForCausalLM):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: Any) -> torch.Tensor:
        hidden = super().forward(input_ids, positions, context)
        return torch.cat((hidden[:, :1] * PROCESS_NUMBER, hidden[:, 1:]), dim=-1)


class AnswersOnEveryRank(LlamaForCausalLM):
    """Rank 1 returns logits too, where None is wanted."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)
        return torch.zeros(len(hidden_states), 264) if logits is None else logits


class WithoutLoader(torch.nn.Module):
    def __init__(self, *, config: Any, prefix: str = "") -> None:
        super().__init__()
