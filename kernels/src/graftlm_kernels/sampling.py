"""Choice of the best token by a native kernel; what is drawn at random goes to the op's own reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from graftlm.ops.sampling.choose import best_token
from graftlm_kernels import _native
from graftlm_kernels.native import DTYPE_CODES
from graftlm_kernels.ops import CpuOp

if TYPE_CHECKING:
    from graftlm.ops.sampling.inputs import SamplingInputs


class ChooseTokens(CpuOp):
    """`choose_tokens`."""

    def __call__(self, logits: torch.Tensor, inputs: SamplingInputs) -> Any:
        code = DTYPE_CODES.get(logits.dtype)
        somebody_else = getattr(self.op, "_best_token", None) is not best_token  # replaced by name
        if inputs.temperature is not None or code is None or logits.stride(-1) != 1 or somebody_else:
            return self.op.forward_native(logits, inputs)
        rows, columns = logits.shape
        token_ids = torch.empty(rows, dtype=torch.int64)
        usable = torch.empty(rows, dtype=torch.bool)
        _native.best(
            logits.data_ptr(), logits.stride(0), rows, columns, code, token_ids.data_ptr(), usable.data_ptr()
        )
        return token_ids, usable
