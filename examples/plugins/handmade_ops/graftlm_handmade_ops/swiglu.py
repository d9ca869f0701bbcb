"""A replacement class: built wherever a model builds SiluAndMul, because an entry point names that class."""

from __future__ import annotations

import torch

from graftlm.layers import SiluAndMul


class OneBufferSiluAndMul(SiluAndMul):
    """gate * sigmoid(gate) * up in one new tensor; `x` is left unchanged, as the op promises.

    `forward_native`, the reference that it inherits, stays what `-silu_and_mul` switches to.
    """

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.sigmoid(gate).mul_(gate).mul_(up)

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_cpu(x)
