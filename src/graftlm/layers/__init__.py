"""The layers that models are made of, under the names that vLLM's authors know.

Importing this package imports no torch; each name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.layers.activation import GeluAndMul, SiluAndMul, get_activation
    from graftlm.layers.attention import Attention
    from graftlm.layers.embedding import ParallelLMHead, VocabParallelEmbedding
    from graftlm.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )
    from graftlm.layers.loading import load_weights
    from graftlm.layers.logits import LogitsProcessor
    from graftlm.layers.norm import LayerNorm, RMSNorm
    from graftlm.layers.rotary import RotaryEmbedding, get_rope

__all__ = [
    "Attention",
    "ColumnParallelLinear",
    "GeluAndMul",
    "LayerNorm",
    "LogitsProcessor",
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "QKVParallelLinear",
    "RMSNorm",
    "ReplicatedLinear",
    "RotaryEmbedding",
    "RowParallelLinear",
    "SiluAndMul",
    "VocabParallelEmbedding",
    "get_activation",
    "get_rope",
    "load_weights",
]

_MODULES = {
    "activation": ("GeluAndMul", "SiluAndMul", "get_activation"),
    "attention": ("Attention",),
    "embedding": ("ParallelLMHead", "VocabParallelEmbedding"),
    "linear": (
        "ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear", "ReplicatedLinear",
        "RowParallelLinear",
    ),
    "loading": ("load_weights",),
    "logits": ("LogitsProcessor",),
    "norm": ("LayerNorm", "RMSNorm"),
    "rotary": ("RotaryEmbedding", "get_rope"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'graftlm.layers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graftlm.layers.{_MODULE_OF[name]}"), name)
