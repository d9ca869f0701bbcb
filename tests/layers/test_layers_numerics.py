"""Each layer against the reference library's module of the same name, in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from graftlm.layers import GeluAndMul, LayerNorm, RMSNorm, SiluAndMul, get_activation, get_rope
from graftlm.layers.rotary import LinearScalingRotaryEmbedding, Llama3RotaryEmbedding, RotaryEmbedding

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_rms_norm_equals_the_reference_with_and_without_residual() -> None:
    """With a residual both are added first, and the sum comes back."""
    torch.manual_seed(0)
    ours, theirs = RMSNorm(96, 1e-5), LlamaRMSNorm(96, 1e-5)
    theirs.weight.data = torch.randn(96)
    ours.weight.data.copy_(theirs.weight.data)
    x, residual = torch.randn(7, 96) * 3, torch.randn(7, 96)
    total = x + residual

    close(ours(x), theirs(x))
    found, carried = ours(x, residual)
    close(found, theirs(total))
    close(carried, total)


def test_layer_norm_equals_the_reference_with_and_without_residual() -> None:
    """As RMSNorm, with mean and bias."""
    torch.manual_seed(0)
    ours, theirs = LayerNorm(64), torch.nn.LayerNorm(64)
    for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        other.data = torch.randn(64)
        mine.data.copy_(other.data)
    x, residual = torch.randn(5, 64), torch.randn(5, 64)
    total = x + residual

    close(ours(x), theirs(x))
    found, carried = ours(x, residual)
    close(found, theirs(total))
    close(carried, total)


@pytest.mark.parametrize(
    ("scaling", "cls"),
    [
        (None, RotaryEmbedding),
        ({"rope_type": "default"}, RotaryEmbedding),
        ({"type": "linear", "factor": 4.0}, LinearScalingRotaryEmbedding),
        (LLAMA3, Llama3RotaryEmbedding),
    ],
)
def test_rotary_embedding_equals_the_reference(scaling: dict[str, Any] | None, cls: type) -> None:
    """Any positions in any order, grouped heads, each scaling a class of its own."""
    torch.manual_seed(0)
    parameters = {"rope_theta": 10000.0, "rope_type": "default", **(scaling or {})}
    parameters["rope_type"] = parameters.pop("type", parameters["rope_type"])
    config = LlamaConfig(
        hidden_size=96, num_attention_heads=3, head_dim=32, max_position_embeddings=512, rope_parameters=parameters
    )
    positions = torch.tensor([0, 1, 500, 17, 3, 511])
    query, key = torch.randn(6, 3 * 32), torch.randn(6, 32)
    cos, sin = LlamaRotaryEmbedding(config)(query, positions[None])
    expected_q, expected_k = apply_rotary_pos_emb(
        query.view(1, 6, 3, 32).transpose(1, 2), key.view(1, 6, 1, 32).transpose(1, 2), cos, sin
    )

    rope = get_rope(32, max_position=512, base=10000.0, rope_scaling=scaling)
    found_q, found_k = rope(positions, query, key)

    assert type(rope) is cls
    close(found_q, expected_q.transpose(1, 2).reshape(6, -1))
    close(found_k, expected_k.transpose(1, 2).reshape(6, -1))


def test_rotary_embedding_leaves_its_inputs_and_the_tail_of_each_head_alone() -> None:
    """Views of the merged projection may be passed; only rotary_dim numbers turn."""
    torch.manual_seed(0)
    merged = torch.randn(4, 3 * 16)
    before = merged.clone()
    query, key, _ = merged.split(16, dim=-1)
    rope = get_rope(8, max_position=16, rope_scaling={"rope_theta": 100.0, "partial_rotary_factor": 0.5})

    found, _ = rope(torch.arange(4), query, key)

    close(merged, before)
    close(found.view(4, 2, 8)[..., 4:], query.reshape(4, 2, 8)[..., 4:])
    assert not torch.equal(found[1:], query[1:])


def test_neighbour_pairs_turn_like_complex_numbers() -> None:
    """The style that is not neox pairs numbers 2i and 2i + 1."""
    torch.manual_seed(0)
    rope = get_rope(8, max_position=16, is_neox_style=False)
    query, positions = torch.randn(5, 2, 8), torch.tensor([3, 0, 15, 7, 7])
    angles = torch.outer(positions.float(), rope.inverse_frequencies())
    turned = torch.view_as_complex(query.view(5, 2, 4, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]

    found, _ = rope(positions, query, query)

    close(found, torch.view_as_real(turned).flatten(2))


def test_an_unknown_or_incomplete_scaling_is_an_error() -> None:
    """The error names the type and what is known or missing."""
    with pytest.raises(ValueError, match="'yarn' is not supported; known are default, linear, llama3"):
        get_rope(8, max_position=8, rope_scaling={"rope_type": "yarn"})
    with pytest.raises(ValueError, match="'llama3' lacks low_freq_factor"):
        get_rope(8, max_position=8, rope_scaling={"rope_type": "llama3", "factor": 2})


@pytest.mark.parametrize(
    "name",
    ["gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "silu", "swish", "tanh"],
)
def test_activations_equal_the_reference(name: str) -> None:
    """Under the names that configs use."""
    x = torch.linspace(-4, 4, 101)[None]

    close(get_activation(name)(x.clone()), ACT2FN[name](x))


def test_gated_activations_multiply_the_halves() -> None:
    """The first half is the gate."""
    torch.manual_seed(0)
    x = torch.randn(3, 20)
    gate, up = x.chunk(2, dim=-1)

    close(SiluAndMul()(x), torch.nn.functional.silu(gate) * up)
    close(GeluAndMul("tanh")(x), torch.nn.functional.gelu(gate, approximate="tanh") * up)


def test_an_unknown_activation_names_the_near_ones() -> None:
    """A typo in a config is found at once."""
    with pytest.raises(ValueError, match="unknown activation 'gelu_nwe'; known are gelu_new"):
        get_activation("gelu_nwe")
