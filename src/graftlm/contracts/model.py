"""The contract of a model architecture, and the facts about it that need no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.attention import ForwardContext
    from graftlm.contracts.weights import Weight


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the front end must know about an architecture without importing it.

    A model class may carry its own as `spec = ModelSpec(...)`; without one the defaults hold. Nothing asks for
    `supports_lora` yet.
    """

    is_text_generation: bool = True
    supports_tensor_parallel: bool = True
    supports_lora: bool = False
    supports_quantization: bool = True


@runtime_checkable
class Model(Protocol):
    """A torch.nn.Module built as `Model(config=…, prefix=…)`."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None: ...

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states [tokens, hidden_size] of input_ids [tokens] at positions [tokens]."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return logits [rows, vocab_size] on rank 0 of the tensor-parallel group, None elsewhere."""

    def load_weights(self, weights: Iterable[tuple[str, Weight]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of the parameters that got a value."""


def is_model_class(candidate: Any) -> bool:
    """Tell whether a class has what the engine calls."""
    return isinstance(candidate, type) and all(
        callable(getattr(candidate, name, None)) for name in ("forward", "compute_logits", "load_weights")
    )
