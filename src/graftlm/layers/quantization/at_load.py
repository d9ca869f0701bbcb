"""The methods `q8_0` and `q4_0`: plain weights are quantized to blocks of 32 while they are loaded.

How blocks are kept and multiplied is the business of the method `gguf`, as for weights that a file holds in blocks;
where nothing provides that one, they are dequantized again, and so computed by the same ops as plain weights.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.contracts.weights import QuantizedWeight
from graftlm.distributed.groups import tp_size
from graftlm.layers.parameters import as_tensor
from graftlm.layers.quantization import build_method, quantization_names
from graftlm.layers.quantization.block_encoders import quantize_rows
from graftlm.layers.quantization.block_formats import BLOCK_FORMATS
from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod
from graftlm.plugins import record_counted

logger = logging.getLogger(__name__)

#: The method that keeps blocks as they are; graftlm-kernels provides it.
KEEPER = "gguf"
#: The matrix that gives the logits decides about every token, so it keeps 8 bits, as in files of llama.cpp.
LOGITS_FORMAT = "Q8_0"


class QuantizeAtLoad(QuantizationConfig):
    """Linear layers and the embedding in `format`; the matrix that gives the logits, tied or not, in Q8_0."""

    format: ClassVar[str]

    def __init__(self, keeper: QuantizationConfig | None) -> None:
        self.keeper = keeper
        self._said: set[str] = set()
        self._plain: dict[str, int] = {}

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizeAtLoad:
        own = (hf_config.get("quantization_config") or {}).get("quant_method")
        if own not in (None, cls.name):
            raise ModelMismatch(
                f"--quantization={cls.name}: the checkpoint's weights are quantized with {own!r} already; "
                "leave the flag out, or serve the model's unquantized weights"
            )
        keeper = build_method(KEEPER, hf_config) if KEEPER in quantization_names() else None
        return cls(keeper)

    def get_linear_method(self, layer: torch.nn.Module, prefix: str) -> LinearMethod:
        kept = self.keeper.get_linear_method(layer, prefix) if self.keeper is not None else None
        if kept is None:
            why = "is not installed: install graftlm-kernels" if self.keeper is None else "does not run here"
            self.say_once(f"weights are rounded to {self.format} and kept in full size: method {KEEPER!r} {why}")
            record_counted("weights_plain", method=self.name, reason=f"method {KEEPER!r} {why}")
        return QuantizingMethod(self, prefix=prefix, kept=kept)

    def note_plain(self, prefix: str, columns: int) -> None:
        """Take note of a matrix that has no whole blocks."""
        self._plain[prefix] = columns

    def tell_plain(self) -> None:
        """Say, once for the whole model, which matrices have no whole blocks; for when it has been built."""
        if not self._plain:
            return
        names = [f"{prefix} ({columns} columns)" for prefix, columns in self._plain.items()]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        block = BLOCK_FORMATS[self.format].block_columns
        self.say_once(
            f"matrices without whole blocks of {block} columns stay plain, {len(names)} in all: "
            f"{', '.join(names[:3])}{more}"
        )
        self._plain.clear()

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("--quantization=%s: %s", self.name, text)


class Q8_0Config(QuantizeAtLoad):  # noqa: N801 - the format's own name
    """8.5 bits for each weight."""

    name: ClassVar[str] = "q8_0"
    format = "Q8_0"


class Q4_0Config(QuantizeAtLoad):  # noqa: N801 - the format's own name
    """4.5 bits for each weight."""

    name: ClassVar[str] = "q4_0"
    format = "Q4_0"


class QuantizingMethod(LinearMethod):
    """Quantizes what is loaded, and leaves all else to the method that keeps it."""

    def __init__(self, config: QuantizeAtLoad, *, prefix: str, kept: LinearMethod | None) -> None:
        self.config = config
        self.prefix = prefix or "a linear layer"
        self.inner = kept or UnquantizedLinearMethod()
        self.is_plain = False

    @property
    def computed_by(self) -> LinearMethod:
        return self.inner.computed_by

    @property
    def kept_as(self) -> str:
        return self.inner.kept_as

    @property
    def instruction_set(self) -> str:
        return self.inner.instruction_set

    def create_weights(
        self, layer: torch.nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype
    ) -> None:
        block = BLOCK_FORMATS[self.config.format].block_columns
        whole = getattr(layer, "total_input_size", input_size)  # before the ranks cut it
        if whole % block:
            self.config.note_plain(self.prefix, whole)
            why = f"{whole} columns are no whole blocks of {block}"
            record_counted("weights_plain", method=self.config.name, reason=why)
            self.is_plain, self.inner = True, UnquantizedLinearMethod()
        elif input_size % block:
            raise ModelMismatch(
                f"--quantization={self.config.name} with --tensor-parallel-size={tp_size()}: each rank would have "
                f"{input_size} of the {whole} columns of {self.prefix}, which are no whole blocks of {block}; "
                "use a smaller tensor-parallel size, or leave --quantization out"
            )
        self.inner.create_weights(layer, input_size=input_size, output_size=output_size, dtype=dtype)

    def would_keep(self, layer: torch.nn.Module, weight: Any) -> str:
        return self.inner.would_keep(layer, self._quantized(layer, weight))

    def load_weight(self, layer: torch.nn.Module, weight: Any, *, row_offset: int) -> None:
        self.inner.load_weight(layer, self._quantized(layer, weight), row_offset=row_offset)

    def _quantized(self, layer: torch.nn.Module, weight: Any) -> Any:
        """Return rows in the layer's format; those that are quantized to another one already are refused."""
        format = LOGITS_FORMAT if getattr(layer, "gives_logits", False) else self.config.format
        if isinstance(weight, QuantizedWeight):
            if weight.format != format:
                raise ModelMismatch(
                    f"--quantization={self.config.name}: {self.prefix} is quantized to {weight.format} already, "
                    "and a second rounding would only lose; leave the flag out to serve the file as it is"
                )
        elif not self.is_plain:
            return quantize_rows(as_tensor(weight, torch.float32), format)
        return weight

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self.config.tell_plain()
        self.inner.process_weights_after_loading(layer)
        # Past the methods of this class: what is loaded costs no second call.
        self.__dict__.update(apply=self.inner.apply, embed=self.inner.embed)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner.apply(layer, x, bias)

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return self.inner.embed(layer, ids)
