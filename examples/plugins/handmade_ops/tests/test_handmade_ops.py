"""Both computations against the references that they stand for."""

from __future__ import annotations

import pytest
import torch
from graftlm_handmade_ops.norm import HandmadeRMSNorm
from graftlm_handmade_ops.swiglu import OneBufferSiluAndMul

from graftlm.layers import RMSNorm

torch.manual_seed(0)


def test_swiglu_equals_its_reference_and_leaves_its_input() -> None:
    """Both methods, against forward_native of the class that is replaced."""
    op, x = OneBufferSiluAndMul(), torch.randn(7, 24)
    before = x.clone()

    torch.testing.assert_close(op.forward_cpu(x), op.forward_native(x))
    torch.testing.assert_close(op.forward_oot(x), op.forward_native(x))
    assert torch.equal(x, before)
    assert op.name == "silu_and_mul"


@pytest.mark.parametrize("with_residual", [False, True])
def test_norm_equals_its_reference(with_residual: bool) -> None:
    """With and without the residual stream, whose sum it returns."""
    op = RMSNorm(32, eps=1e-5)
    op.weight.data.uniform_(0.5, 1.5)
    x, residual = torch.randn(5, 32), torch.randn(5, 32)
    arguments = [(x, residual.clone()) if with_residual else (x,) for _ in range(2)]

    torch.testing.assert_close(HandmadeRMSNorm(op)(*arguments[0]), op.forward_native(*arguments[1]))


def test_norm_says_what_it_cannot_do() -> None:
    """The reason is shown where the choice is explained."""
    answer = HandmadeRMSNorm.supports(device=torch.device("cpu"), dtype=torch.bfloat16, shape=(32,))

    assert answer == "it computes in float32, not in torch.bfloat16"
