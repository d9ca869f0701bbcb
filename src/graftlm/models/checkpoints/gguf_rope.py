"""Finds the llama3 rotary scaling behind the factors that a GGUF file stores for each frequency.

A GGUF converter keeps only the result (`rope_freqs.weight`); the layers want the parameters that made it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: The context that the two boundaries are counted in; any other gives other boundaries and the same factors.
_ORIGINAL_CONTEXT = 8192


def llama3_scaling(factors: Sequence[float], *, base: float) -> dict[str, Any] | None:
    """Return Hugging Face's `rope_scaling` that yields `factors`, or None if they scale nothing.

    Frequencies above a boundary are kept (1), those below another are divided by the largest factor, and
    between them the share kept grows linearly with the frequency.
    """
    factor = max(factors)
    if factor <= 1:
        return None
    head_size = 2 * len(factors)
    turns = [_ORIGINAL_CONTEXT * base ** (-2 * i / head_size) / (2 * math.pi) for i in range(len(factors))]
    kept = [(1 / f - 1 / factor) / (1 - 1 / factor) for f in factors]
    low, high = _boundaries(turns, kept)
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": _ORIGINAL_CONTEXT,
    }


def _boundaries(turns: list[float], kept: list[float], tolerance: float = 1e-5) -> tuple[float, float]:
    """Solve kept = (turns - low) / (high - low), cut to [0, 1], for low and high."""
    between = [(t, k) for t, k in zip(turns, kept, strict=True) if tolerance < k < 1 - tolerance]
    below = max((t for t, k in zip(turns, kept, strict=True) if k <= tolerance), default=0.0)
    above = min((t for t, k in zip(turns, kept, strict=True) if k >= 1 - tolerance), default=2 * max(turns))
    if len(between) >= 2:
        (t1, k1), (t2, k2) = between[0], between[-1]
        width = (t1 - t2) / (k1 - k2)
        low = t1 - k1 * width
        return low, low + width
    if between:
        t, k = between[0]
        low = (t - k * above) / (1 - k)
        return (low, above) if low >= below else (below, below + (t - below) / k)
    return below, above
