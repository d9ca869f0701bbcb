"""Tells the ledger in which formats a model keeps its matrices, and which methods multiply with them.

It knows no method: each says it of itself.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import nn

from graftlm.contracts.quantization import LinearMethod
from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod
from graftlm.plugins import record, record_counted
from graftlm.plugins.registry import key_text


def note_kept_weights(model: nn.Module) -> None:
    """Record an event `weights_kept` for each format of a model that is loaded, and `weights_plain` for blocks
    that were given and are not kept.

    Matrices in plain formats are the op `linear`'s business.
    """
    _record((layer, method, method.kept_as) for layer, method in _matrices(model))


@contextlib.contextmanager
def foreseen_kept_weights(model: nn.Module) -> Iterator[None]:
    """Inside the block, what is loaded into matrices is only shown to their methods, which keep none of it.

    Afterwards the same is recorded as of a model that is loaded. What a method refuses, it refuses here.
    """
    matrices = _matrices(model)
    formats: defaultdict[nn.Module, list[str]] = defaultdict(list)

    def show(method: LinearMethod, layer: nn.Module, weight: Any, *, row_offset: int) -> None:
        formats[layer].append(method.would_keep(layer, weight.narrow(0, 0, min(1, weight.shape[0]))))

    for _, method in matrices:
        method.__dict__["load_weight"] = partial(show, method)
    yield
    _record((layer, method, "+".join(dict.fromkeys(filter(None, formats[layer])))) for layer, method in matrices)


def _matrices(model: nn.Module) -> list[tuple[nn.Module, LinearMethod]]:
    """Return the layers with a matrix of their own, and the methods that keep them."""
    found = [(layer, getattr(layer, "linear_method", None)) for layer in model.modules()]
    return [
        (layer, method)
        for layer, method in found
        if isinstance(method, LinearMethod) and not getattr(layer, "tied", False)
    ]


def _record(kept: Iterable[tuple[nn.Module, LinearMethod, str]]) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for layer, method, format in kept:
        name = key_text(type(method.computed_by))
        is_plain = isinstance(method.computed_by, UnquantizedLinearMethod)
        if not is_plain:
            counts[name, format, method.instruction_set] += 1
        if is_plain or format:  # who does not say what it keeps may keep everything
            for lost in sorted(getattr(layer, "given_formats", set()) - set(format.split("+"))):
                record_counted("weights_plain", method=name, reason=f"it keeps no {lost}, which is dequantized")
    for (name, format, instruction_set), count in counts.items():
        record("weights_kept", method=name, format=format, instruction_set=instruction_set, count=count)
