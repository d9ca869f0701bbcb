"""The contract of a quantization method: how a layer keeps and applies its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class LinearMethod(ABC):
    """How one linear layer (or embedding) keeps its weight and multiplies with it."""

    #: How far `apply` may lie from the product with the rows that `embed` returns, beside the roundings of the
    #: number format: a share of the product's root mean square. Rounding activations to whole numbers takes some.
    activation_error: ClassVar[float] = 0.0

    @property
    def computed_by(self) -> LinearMethod:
        """The method that multiplies: itself, unless it only prepares weights for another one."""
        return self

    @property
    def kept_as(self) -> str:
        """The number format in which the weight is kept, once it is loaded, as "Q4_1"; "" where nobody asks."""
        return ""

    @property
    def instruction_set(self) -> str:
        """The instructions that multiply on this machine, as "avx2"; "" where the method has no choice."""
        return ""

    def would_keep(self, layer: torch.nn.Module, weight: Any) -> str:
        """Return what `kept_as` will be of rows like `weight`, and keep none; raise what `load_weight` would."""
        return ""

    @abstractmethod
    def create_weights(
        self, layer: torch.nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype
    ) -> None:
        """Register on `layer` the parameters for its share of the matrix, `weight` [output_size, input_size]."""

    @abstractmethod
    def load_weight(self, layer: torch.nn.Module, weight: Any, *, row_offset: int) -> None:
        """Copy this rank's rows (a tensor or QuantizedWeight, already cut) to rows `row_offset:` of the layer."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack once, after all weights are in."""

    @abstractmethod
    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x [tokens, input_size] times the weight's transpose: [tokens, output_size]."""

    @abstractmethod
    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the weight's rows `ids` [tokens]: [tokens, input_size]."""


class QuantizationConfig(ABC):
    """A quantization method; a plugin registers it under its name."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizationConfig: ...

    @abstractmethod
    def get_linear_method(self, layer: torch.nn.Module, prefix: str) -> LinearMethod | None:
        """Return the method for this layer, or None to keep it unquantized."""
