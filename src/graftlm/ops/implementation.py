"""The contract of an op implementation: one provider's way to compute one op.

It does not know when it is chosen; `graftlm.ops.dispatch` asks it what it supports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from graftlm.ops.custom_op import CustomOp


class OpImplementation(ABC):
    """Published under `graftlm.op_implementations` as `op.provider`; one instance serves one op object.

    It is constructed before the op's own constructor has run: keep `op`, read its attributes when called.
    """

    #: Attention backends that keep decode steps and run this one's calls in them without Python; see
    #: `AttentionBackend.capture_steps`. In steps kept by others it is called from Python, as ever.
    captured_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, op: CustomOp) -> None:
        self.op = op

    @classmethod
    def supports(cls, *, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> bool | str:
        """Return True, or the reason why not; `shape` is what the op class says of its fixed sizes."""
        return True

    @classmethod
    def instruction_set(cls) -> str:
        """Name the instructions that it computes with on this machine, as "avx2"; "" where it has no choice."""
        return ""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the op's `forward_native` computes, within the op's tolerance."""

    def pack(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Prepare the op's weights once, after all of them are loaded."""
