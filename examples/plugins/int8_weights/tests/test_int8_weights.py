"""The method on single layers; the engine's own tests serve a model with it."""

from __future__ import annotations

import pytest
import torch
from graftlm_int8_weights import Int8WeightOnly

from graftlm.contracts.quantization import QuantizationConfig
from graftlm.layers import ParallelLMHead, QKVParallelLinear, ReplicatedLinear

torch.manual_seed(0)
METHOD = Int8WeightOnly()


def filled(layer: ReplicatedLinear, weight: torch.Tensor) -> ReplicatedLinear:
    layer.load_weight(weight)
    layer.process_weights_after_loading()
    return layer


def test_a_layer_computes_nearly_the_same_with_a_quarter_of_the_memory() -> None:
    """One part in 127 of each row's largest weight is the most that rounding takes."""
    weight, x = torch.randn(48, 32), torch.randn(5, 32)
    plain = filled(ReplicatedLinear(32, 48, bias=False), weight)
    packed = filled(ReplicatedLinear(32, 48, bias=False, quant_config=METHOD), weight)

    assert packed.weight.dtype == torch.int8
    assert (packed(x) - plain(x)).abs().max() < 0.15
    assert torch.nn.functional.cosine_similarity(packed(x), plain(x)).min() > 0.999


def test_shards_land_in_their_rows() -> None:
    """q, k and v come one by one, and each row has its own scale."""
    layer = QKVParallelLinear(16, 8, 4, 2, bias=False, quant_config=METHOD)
    for shard, rows in (("q", 32), ("k", 16), ("v", 16)):
        layer.load_weight(torch.full((rows, 16), float("qkv".index(shard) + 1)), shard)
    x = torch.ones(1, 16)

    assert layer.unloaded() == []
    assert layer(x)[0, [0, 31, 32, 47, 48, 63]].tolist() == pytest.approx([16.0, 16.0, 32.0, 32.0, 48.0, 48.0])


def test_the_head_and_what_the_checkpoint_names_stay_plain() -> None:
    """As `modules_to_not_convert` says."""
    section = {"quantization_config": {"quant_method": "int8_weight_only", "modules_to_not_convert": ["o_proj"]}}
    method: QuantizationConfig = Int8WeightOnly.from_checkpoint(section)
    head = ParallelLMHead(10, 8, quant_config=method, prefix="lm_head")
    kept = ReplicatedLinear(8, 8, quant_config=method, prefix="model.layers.0.self_attn.o_proj")
    packed = ReplicatedLinear(8, 8, quant_config=method, prefix="model.layers.0.mlp.down_proj")

    assert head.weight.dtype == kept.weight.dtype == torch.float32
    assert packed.weight.dtype == torch.int8
