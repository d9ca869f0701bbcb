"""An op implementation: one provider's way to compute rms_norm, taken where a flag or a platform names it."""

from __future__ import annotations

import torch

from graftlm.ops import OpImplementation


class HandmadeRMSNorm(OpImplementation):
    """RMSNorm out of elementary operations; a vendor would call a kernel here."""

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        """The mean of squares needs float32; in a narrower format the reference is better."""
        return True if dtype == torch.float32 else f"it computes in float32, not in {dtype}"

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        summed = x if residual is None else residual.add_(x)
        inverse = torch.rsqrt(summed.square().mean(dim=-1, keepdim=True) + self.op.eps)
        normed = (summed * inverse).mul_(self.op.weight)
        return normed if residual is None else (normed, summed)
