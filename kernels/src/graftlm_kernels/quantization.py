"""The method `gguf`: matrices stay in their file's format from the map to the kernel.

Formats without a kernel are dequantized at load, and said so once. It does not read files.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch

from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.contracts.weights import QuantizedWeight
from graftlm.ops.build import current_build
from graftlm_kernels.native import (
    BLOCK_COLUMNS,
    BLOCK_FORMATS,
    DTYPE_CODES,
    PackedWeight,
    instruction_set,
    refusal,
    take_over,
)

logger = logging.getLogger(__name__)


class GGUFConfig(QuantizationConfig):
    """Keeps Q8_0, Q4_0 and Q4_1 weights and plain ones as they are; others become the model's number format."""

    name: ClassVar[str] = "gguf"

    def __init__(self) -> None:
        self.said: set[str] = set()

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> GGUFConfig:
        return cls()

    def get_linear_method(self, layer: torch.nn.Module, prefix: str) -> LinearMethod | None:
        build = current_build()
        if refusal(build.device, build.dtype):
            return None
        return GGUFLinearMethod(self, prefix)

    def note_dequantized(self, format: str, dtype: torch.dtype) -> None:
        """Say once per format that no kernel takes it."""
        if format not in self.said:
            self.said.add(format)
            kept = ", ".join(BLOCK_FORMATS)
            logger.info("weights dequantized format=%s dtype=%s: kernels take %s", format, dtype, kept)


class GGUFLinearMethod(LinearMethod):
    """One matrix, or several where its parts have different formats. It keeps its state itself."""

    #: Activations in 16 bits, one scale for 32: 2e-5 on average, five times that at the worst of a million results.
    activation_error: ClassVar[float] = 5e-4

    def __init__(self, config: GGUFConfig, prefix: str) -> None:
        self.config = config
        self.prefix = prefix
        self.output_size = self.input_size = 0
        self.dtype = torch.float32
        #: (format, first row, matrix); the first spans the whole layer, later ones overrule their rows.
        self.parts: list[tuple[str, int, PackedWeight]] = []

    @property
    def kept_as(self) -> str:
        return "+".join(dict.fromkeys(name for name, _, _ in self.parts))

    @property
    def instruction_set(self) -> str:
        return instruction_set()

    def create_weights(
        self, layer: torch.nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype
    ) -> None:
        """Take note of the sizes; memory is taken when the format is known."""
        take_over()
        self.input_size, self.output_size, self.dtype = input_size, output_size, dtype

    def would_keep(self, layer: torch.nn.Module, weight: Any) -> str:
        return self._readable(weight)[1]

    def load_weight(self, layer: torch.nn.Module, weight: Any, *, row_offset: int) -> None:
        rows, name, code = self._readable(weight)
        if not self.parts:
            whole = PackedWeight(code, output_size=self.output_size, input_size=self.input_size)
            self.parts.append((name, 0, whole))
        if name == self.parts[0][0]:
            self.parts[0][2].load(rows, offset=row_offset)
            return
        part = PackedWeight(code, output_size=rows.shape[0], input_size=self.input_size)
        part.load(rows, offset=0)
        self.parts.append((name, row_offset, part))

    def _readable(self, weight: Any) -> tuple[torch.Tensor, str, int]:
        """Return rows as a matrix takes them, their format's name and code."""
        if isinstance(weight, QuantizedWeight):
            if weight.format in BLOCK_FORMATS and weight.shape[1] % BLOCK_COLUMNS == 0:
                return weight.data, weight.format, BLOCK_FORMATS[weight.format][0]
            self.config.note_dequantized(weight.format, self.dtype)
            weight = weight.dequantize(self.dtype)
        if weight.dtype not in DTYPE_CODES:
            weight = weight.to(self.dtype)
        return weight, str(weight.dtype).removeprefix("torch."), DTYPE_CODES[weight.dtype]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Choose how to multiply, now that all parts are there."""
        logger.debug("weights kept layer=%s format=%s", self.prefix, self.kept_as)
        if len(self.parts) == 1:
            multiply = self.parts[0][2].multiply
            # Past the method of the class: the ordinary case costs no second call.
            self.__dict__["apply"] = lambda layer, x, bias=None: multiply(x, bias)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        _, _, whole = self.parts[0]
        y = whole.multiply(x, bias)
        for _, start, part in self.parts[1:]:
            own = None if bias is None else bias[start : start + part.output_size]
            part.multiply_into(x, own, y, y[:, start:].data_ptr(), self.output_size)
        return y

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        x = self.parts[0][2].rows(ids, self.dtype)
        for _, start, part in self.parts[1:]:
            own = (ids >= start) & (ids < start + part.output_size)
            x[own] = part.rows(ids[own] - start, self.dtype)
        return x
