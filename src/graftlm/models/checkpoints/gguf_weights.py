"""Tensors of a GGUF file as weights: plain ones as torch tensors over the map, quantized ones in their blocks.

It does not know which tensor belongs to which layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight
from graftlm.models.checkpoints.gguf import GGUFFile, GGUFTensor

if TYPE_CHECKING:
    from graftlm.contracts.weights import Weight

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_weight(file: GGUFFile, tensor: GGUFTensor) -> Weight:
    """Return one tensor over the map; its pages are read when it is used."""
    flat = torch.frombuffer(file.map, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.offset)
    name = tensor.format.name
    if name in _PLAIN:
        return flat.view(_PLAIN[name]).view(tensor.shape)
    return QuantizedGGUFWeight(name, flat.view(-1, tensor.format.bytes_of(tensor.shape[-1])))


def unpermute_rows(weight: Weight, num_heads: int) -> Weight:
    """Undo the row order in which llama GGUF files keep q and k.

    They lie as interleaved rotary pairs; the layers rotate halves. Only whole rows (or bias elements) move,
    so a quantized weight stays quantized.
    """
    if isinstance(weight, QuantizedGGUFWeight):
        return QuantizedGGUFWeight(weight.format, _unpermute(weight.data, num_heads))
    assert isinstance(weight, torch.Tensor)
    return _unpermute(weight, num_heads)


def _unpermute(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * head_size, …] in pairs -> [heads * head_size, …] in halves."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, -1)  # [heads, head_size / 2, 2, …]
    return pairs.transpose(1, 2).reshape(rows.shape)
