"""Ops that are wrong, each in one way that the suites must see."""

from __future__ import annotations

from typing import Any

import torch
from which_process import PROCESS_NUMBER

from graftlm.layers.norm import RMSNorm
from graftlm.layers.rotary import RotaryEmbedding
from graftlm.ops import CustomOp, OpImplementation


class WrongNumerics(RMSNorm):
    """Forgets eps, which shows in rows no larger than it."""

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is not None:
            x = residual.add_(x)
        y = x * x.float().square().mean(-1, keepdim=True).rsqrt().to(x.dtype) * self.weight
        return y if residual is None else (y, residual)


class WrongShape(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = super().forward_native(x, residual)
        return found.flatten() if isinstance(found, torch.Tensor) else found


class WrongFormat(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = super().forward_native(x, residual)
        return found.double() if isinstance(found, torch.Tensor) else found


class ForgetsTheResidual(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return super().forward_native(x)


class MutatesItsInput(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = super().forward_native(x, residual)
        x.zero_()
        return found


class KeepsState(RMSNorm):
    """Counts its calls into the answer, too little for any tolerance to see."""

    calls = 0

    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        type(self).calls += 1
        found = super().forward_native(x, residual)
        y = found if isinstance(found, torch.Tensor) else found[0]
        y.mul_(1 + 2e-7 * self.calls)
        return found


class HandsOutOneBuffer(RMSNorm):
    """Answers into the same memory each time."""

    buffers: dict[tuple[Any, ...], torch.Tensor] = {}

    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = super().forward_native(x, residual)
        if residual is not None:
            return found
        key = (x.shape[-1], x.dtype)
        buffer = self.buffers.setdefault(key, torch.empty(8 * x.shape[-1], dtype=x.dtype))
        part = buffer[: x.numel()].view(x.shape)
        part.copy_(found)
        return part


class DiffersBetweenProcesses(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = super().forward_native(x, residual)
        y = found if isinstance(found, torch.Tensor) else found[0]
        y.mul_(1 + 1e-6 * PROCESS_NUMBER)
        return found


class Raises(RMSNorm):
    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        raise RuntimeError("no such device")


class WrongTable(RotaryEmbedding):
    """Its forward is inherited; its angles are not those of the class that it replaces."""

    def inverse_frequencies(self) -> torch.Tensor:
        return super().inverse_frequencies() * 1.01


class OtherKind(RMSNorm):
    """Published as the replacement of something that it does not derive from."""


class WithoutExamples(CustomOp):
    name = "without_examples"

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WrongImplementation(OpImplementation):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        found = self.op.forward_native(x, residual)
        return found * 1.5 if isinstance(found, torch.Tensor) else found


class ReadsTheOpTooEarly(OpImplementation):
    def __init__(self, op: Any) -> None:
        super().__init__(op)
        self.size = op.hidden_size

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return self.op.forward_native(x, residual)


class SaysNothing(OpImplementation):
    """Refuses without a reason."""

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        return dtype == torch.float32

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return self.op.forward_native(x, residual)
