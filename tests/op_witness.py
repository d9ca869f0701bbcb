"""Replacements that note which tensors they are given, beside what their neighbours in the model made.

They are built where the model asks for the engine's classes, as an installed plugin's are; what computes is the
reference.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import torch

from graftlm.layers.activation import SiluAndMul
from graftlm.layers.linear import LinearBase, MergedColumnParallelLinear, QKVParallelLinear
from graftlm.layers.rotary import RotaryEmbedding
from graftlm.ops.pluggable import replacements


class Place(NamedTuple):
    """Where a tensor lies and how it is read."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Call(NamedTuple):
    """What one call was given; `made` is what the layer before it returned last, or None if it was not called."""

    given: list[Place]
    made: Place | None
    is_same_object: bool
    callers: list[str]
    """Modules of the frames between the model, or whatever called in its place, and the replacement."""


calls: dict[str, list[Call]] = {}
_made: dict[type, tuple[weakref.ref[torch.Tensor], Place]] = {}


def place_of(tensor: torch.Tensor) -> Place:
    return Place(tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


class WitnessSilu(SiluAndMul):
    """Given what the linear layer before it made."""

    before: ClassVar[type] = MergedColumnParallelLinear

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        _note(self, x)
        return self.forward_native(x)


class WitnessRotary(RotaryEmbedding):
    """Given two parts of what the linear layer before it made."""

    before: ClassVar[type] = QKVParallelLinear

    def forward_cpu(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _note(self, query, key)
        return self.forward_native(positions, query, key)


def _note(op: Any, *given: torch.Tensor) -> None:
    last, made = _made.pop(op.before, (lambda: None, None))
    frame, callers = sys._getframe(2), []
    while frame.f_back is not None and frame.f_globals["__name__"] == "torch.nn.modules.module":
        callers.append(frame.f_globals["__name__"])
        frame = frame.f_back
    callers.append(frame.f_globals["__name__"])
    callers = list(dict.fromkeys(callers))
    same = last() is given[0]
    calls.setdefault(op.name, []).append(Call([place_of(one) for one in given], made, same, callers))


@contextmanager
def witnesses() -> Iterator[dict[str, list[Call]]]:
    """Let models be built with the witnesses; yields the calls of each op by its name."""
    forward = LinearBase.forward

    def noted(self: LinearBase, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        _made[type(self)] = weakref.ref(y), place_of(y)
        return y

    calls.clear()
    SiluAndMul.register_oot(WitnessSilu)
    RotaryEmbedding.register_oot(WitnessRotary)
    try:
        with (
            patch.object(MergedColumnParallelLinear, "forward", noted),
            patch.object(QKVParallelLinear, "forward", noted),
        ):
            yield calls
    finally:
        for cls in (SiluAndMul, RotaryEmbedding):
            del replacements._entries[cls]
