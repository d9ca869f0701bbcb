"""Norm, activation and rotary embedding against the ops' own references."""

from __future__ import annotations

import copy

import pytest
import torch
from graftlm_kernels import ops
from packed_cases import FLOATS, assert_close

from graftlm.layers.activation import ReLU, SiluAndMul
from graftlm.layers.norm import LayerNorm, RMSNorm
from graftlm.layers.rotary import RotaryEmbedding

#: Two roundings of the number format: the reference rounds between its steps, the kernels only at the end.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


def norm_of(size: int, dtype: torch.dtype) -> tuple[RMSNorm, ops.RMSNorm]:
    norm = RMSNorm(size, 1e-5)
    norm.weight.data = torch.randn(size).to(dtype)
    kernel = ops.RMSNorm(norm)
    kernel.pack({"weight": norm.weight})
    return norm, kernel


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
@pytest.mark.parametrize("size", [1, 7, 8, 100, 576])
def test_rms_norm_equals_the_reference(path, size, dtype):
    """With and without a residual, which becomes the sum."""
    torch.manual_seed(size)
    norm, kernel = norm_of(size, dtype)
    for rows in (0, 1, 3, 64, 301):
        x, residual = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype)
        before = x.clone()

        assert_close(kernel(x), norm.forward_native(x), relative=TOLERANCE[dtype])
        own = residual.clone()
        found, summed = kernel(x, own)
        expected, expected_sum = norm.forward_native(x, residual)
        assert summed is own
        assert_close(found, expected, relative=TOLERANCE[dtype])
        assert torch.equal(summed, expected_sum)
        assert torch.equal(x, before)


def test_rms_norm_leaves_what_it_does_not_take_to_the_reference(path):
    """Columns that lie apart, and a number format that is not the weight's."""
    norm, kernel = norm_of(16, torch.float32)
    wide = torch.randn(5, 40)

    assert_close(kernel(wide[:, 3:19]), norm.forward_native(wide[:, 3:19]), relative=1e-6)


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
@pytest.mark.parametrize("size", [1, 7, 8, 100, 576])
@pytest.mark.parametrize("parts", ["weight and bias", "weight", "neither"])
def test_layer_norm_equals_the_reference(path, size, dtype, parts):
    """With and without a residual, which becomes the sum; also far from zero, where a sum of squares would fail."""
    torch.manual_seed(size)
    norm = LayerNorm(size, 1e-5, bias=parts == "weight and bias", elementwise_affine=parts != "neither")
    for parameter in norm.parameters():
        parameter.data = torch.randn(size).to(dtype)
    kernel = ops.LayerNorm(norm)
    kernel.pack(dict(norm.named_parameters()))
    for rows, offset in ((0, 0.0), (1, 0.0), (3, 100.0), (301, 1.0)):
        x = (torch.randn(rows, size) + offset).to(dtype)
        residual, before = torch.randn(rows, size).to(dtype), x.clone()
        # Exactly, since plain torch itself loses digits where the mean is large; so does a mean in float32.
        exactly = in_float64(norm).forward_native(x.double())
        most = TOLERANCE[dtype] * (1 + 10 * offset)

        assert_close(kernel(x), exactly, relative=most)
        own = residual.clone()
        found, summed = kernel(x, own)
        _, expected_sum = norm.forward_native(x, residual)
        assert summed is own
        assert torch.equal(summed, expected_sum)
        assert_close(found, in_float64(norm).forward_native(expected_sum.double()), relative=most)
        assert torch.equal(x, before)


def in_float64(norm: LayerNorm) -> LayerNorm:
    return copy.deepcopy(norm).double()


def test_layer_norm_leaves_what_it_does_not_take_to_the_reference(path):
    """Columns that lie apart, and a number format that is not the weight's."""
    norm = LayerNorm(16)
    norm.weight.data, norm.bias.data = torch.randn(16), torch.randn(16)
    kernel = ops.LayerNorm(norm)
    kernel.pack(dict(norm.named_parameters()))
    wide = torch.randn(5, 40)

    assert_close(kernel(wide[:, 3:19]), norm.forward_native(wide[:, 3:19]), relative=1e-6)


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
def test_silu_and_mul_equals_the_reference(path, dtype):
    """Also far from zero, where e^x leaves the range of floats."""
    kernel, op = ops.SiluAndMul(SiluAndMul()), SiluAndMul()
    for rows, size in ((0, 8), (1, 1), (3, 19), (40, 256), (1, 1536)):
        x = (torch.randn(rows, 2 * size) * 4).to(dtype)

        assert_close(kernel(x), op.forward_native(x), relative=TOLERANCE[dtype])
    extremes = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]).to(dtype)
    torch.testing.assert_close(kernel(extremes), op.forward_native(extremes))


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
def test_relu_equals_the_reference(path, dtype):
    """In place; what is no number stays none, and columns that lie apart go to the reference."""
    kernel = ops.ReLU(ReLU())
    for rows, size in ((0, 8), (1, 1), (3, 19), (40, 3000)):
        x = torch.randn(rows, size).to(dtype)
        expected = x.relu()

        assert torch.equal(kernel(x), expected) and torch.equal(x, expected)
    odd = torch.tensor([[float("nan"), float("inf"), float("-inf"), -0.0, 1e-3, -1e-3, 2.0, -2.0, 3.0]]).to(dtype)
    torch.testing.assert_close(kernel(odd.clone()), odd.relu(), equal_nan=True)
    apart = torch.randn(4, 12).to(dtype)[:, ::2]
    assert torch.equal(kernel(apart.clone()[:, ::2]), apart[:, ::2].relu())


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (20, 20), (64, 32), (6, 6)])
def test_rotary_embedding_equals_the_reference(path, head_size, rotary_dim, neox, dtype):
    """Both styles, whole and partial heads, tokens that lie apart, positions in any order."""
    torch.manual_seed(head_size)
    op = RotaryEmbedding(head_size, max_position=512, rotary_dim=rotary_dim, is_neox_style=neox, dtype=dtype)
    kernel = ops.RotaryEmbedding(op)
    for tokens in (0, 1, 70):
        both = torch.randn(tokens, 5 * head_size).to(dtype)
        query, key = both.split([3 * head_size, 2 * head_size], dim=-1)
        positions = torch.randint(0, 512, (tokens,))
        before = both.clone()

        found = kernel(positions, query, key)
        for one, expected in zip(found, op.forward_native(positions, query, key), strict=True):
            assert_close(one, expected, relative=TOLERANCE[dtype])
        assert torch.equal(both, before)
