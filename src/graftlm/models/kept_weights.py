"""Tells the ledger in which formats a loaded model keeps its matrices, and which methods multiply with them.

It knows no method: each says it of itself.
"""

from __future__ import annotations

from collections import Counter

from torch import nn

from graftlm.contracts.quantization import LinearMethod
from graftlm.plugins import record
from graftlm.plugins.registry import key_text


def note_kept_weights(model: nn.Module) -> None:
    """Record an event `weights_kept` for each format; matrices in plain formats are the op `linear`'s business."""
    kept: Counter[tuple[str, str, str]] = Counter()
    for layer in model.modules():
        method = getattr(layer, "linear_method", None)
        if isinstance(method, LinearMethod) and method.kept_as and not getattr(layer, "tied", False):
            kept[key_text(type(method.computed_by)), method.kept_as, method.instruction_set] += 1
    for (method, format, instruction_set), count in kept.items():
        record("weights_kept", method=method, format=format, instruction_set=instruction_set, count=count)
