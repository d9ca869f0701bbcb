"""How a layer keeps weights under `dummy_int8`; a vendor would keep the bytes and multiply with them."""

from __future__ import annotations

from typing import Any

import torch

from graftlm.contracts.weights import QuantizedWeight
from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod


class Int8GridLinearMethod(UnquantizedLinearMethod):
    """The plain method over weights that were rounded when they were loaded."""

    def load_weight(self, layer: torch.nn.Module, weight: Any, *, row_offset: int) -> None:
        rows = weight.dequantize(torch.float32) if isinstance(weight, QuantizedWeight) else weight.float()
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127.0  # [rows, 1]
        super().load_weight(layer, (rows / scale).round() * scale, row_offset=row_offset)
