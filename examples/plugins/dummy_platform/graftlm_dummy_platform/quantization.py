"""A quantization method of the dummy device, which `pre_register_and_update` registers by name.

The front end imports this module, so torch is imported only where layers are built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.contracts.quantization import LinearMethod, QuantizationConfig

if TYPE_CHECKING:
    import torch


class DummyInt8(QuantizationConfig):
    """Weights on the grid of int8, one scale for each row, kept in the number format of the model."""

    name = "dummy_int8"

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> DummyInt8:
        return cls()

    def get_linear_method(self, layer: torch.nn.Module, prefix: str) -> LinearMethod:
        from graftlm_dummy_platform.int8_linear import Int8GridLinearMethod

        return Int8GridLinearMethod()
