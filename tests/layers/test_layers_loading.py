"""Checkpoint tensors find their layers by name, and what is missing or too much is named."""

from __future__ import annotations

import pytest
import torch
from layer_fakes import FakeQuantized, whole_numbers

from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.layers import (
    ParallelLMHead,
    QKVParallelLinear,
    RMSNorm,
    RowParallelLinear,
    VocabParallelEmbedding,
    load_weights,
)
from graftlm.layers.loading import UnexpectedTensor, missing_weights
from graftlm.layers.parameters import ShapeMismatch
from graftlm.layers.quantization import (
    get_quantization_config,
    quantization_names,
    quantization_registry,
    register_quantization_config,
)
from graftlm.plugins import UnknownKey

STACKED = [("qkv_proj", "q_proj", "q"), ("qkv_proj", "k_proj", "k"), ("qkv_proj", "v_proj", "v")]


class Block(torch.nn.Module):
    """One attention block with a norm and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = VocabParallelEmbedding(6, 8, prefix="embed")
        self.norm = RMSNorm(8)
        self.attn = torch.nn.Module()
        self.attn.qkv_proj = QKVParallelLinear(8, 4, 2, 1, prefix="attn.qkv_proj")
        self.attn.o_proj = RowParallelLinear(8, 8, bias=False, prefix="attn.o_proj")
        self.head = ParallelLMHead(6, 8, prefix="head").tie_weights(self.embed)


def tensors() -> dict[str, torch.Tensor]:
    return {
        "embed.weight": whole_numbers(6, 8),
        "norm.weight": whole_numbers(8),
        "attn.q_proj.weight": whole_numbers(8, 8),
        "attn.k_proj.weight": whole_numbers(4, 8),
        "attn.v_proj.weight": whole_numbers(4, 8),
        "attn.q_proj.bias": whole_numbers(8),
        "attn.k_proj.bias": whole_numbers(4),
        "attn.v_proj.bias": whole_numbers(4),
        "attn.o_proj.weight": whole_numbers(8, 8),
        "head.weight": whole_numbers(6, 8),
        "attn.rotary_emb.inv_freq": torch.zeros(2),
    }


def test_every_tensor_finds_its_layer() -> None:
    """Merged layers take their parts, a tied head ignores its copy, and all parameters are reported."""
    block, source = Block(), tensors()
    source["attn.o_proj.weight"] = FakeQuantized(source["attn.o_proj.weight"])  # type: ignore[assignment]

    loaded = load_weights(block, source.items(), stacked=STACKED)

    assert loaded == {name for name, _ in block.named_parameters()}
    assert missing_weights(block, loaded) == []
    parts = [source[f"attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(block.attn.qkv_proj.weight, torch.cat(parts))
    assert torch.equal(block.head(torch.eye(8)), source["embed.weight"].T)


def test_a_missing_part_is_named() -> None:
    """A merged layer with a hole is not complete, and says which shard it waits for."""
    block, source = Block(), tensors()
    for name in ("attn.k_proj.weight", "norm.weight", "attn.v_proj.bias"):
        del source[name]

    loaded = load_weights(block, source.items(), stacked=STACKED)

    assert "attn.qkv_proj.weight" not in loaded
    assert sorted(missing_weights(block, loaded)) == [
        "attn.qkv_proj.bias (v)", "attn.qkv_proj.weight (k)", "norm.weight",
    ]  # fmt: skip


def test_a_tensor_too_many_is_an_error_with_the_nearest_names() -> None:
    """Unless the model skips it."""
    block = Block()
    with pytest.raises(UnexpectedTensor, match=r"'attn\.out_proj\.weight' .* attn\.o_proj\.weight"):
        load_weights(block, [("attn.out_proj.weight", torch.zeros(8, 8))], stacked=STACKED)

    assert load_weights(block, [("attn.out_proj.weight", torch.zeros(8, 8))], skip=["out_proj"]) == set()
    assert load_weights(block, [("x.y", torch.zeros(1))], skip=lambda name: name == "x.y") == set()


def test_a_wrong_shape_names_tensor_and_layer() -> None:
    """In a merged layer the tensor's own name stands in the note."""
    block = Block()
    with pytest.raises(ShapeMismatch, match=r"attn\.qkv_proj\.weight") as raised:
        load_weights(block, [("attn.k_proj.weight", torch.zeros(3, 8))], stacked=STACKED)
    assert raised.value.__notes__ == ["while loading the checkpoint's tensor 'attn.k_proj.weight'"]
    with pytest.raises(ShapeMismatch, match=r"norm\.weight: .* \[9\], the model expects \[8\]"):
        load_weights(block, [("norm.weight", torch.zeros(9))])


def test_a_quantization_method_keeps_the_weights_its_own_way() -> None:
    """A plugin's LinearMethod gets this rank's rows as the checkpoint has them, and computes with them."""

    class KeptAsTheyAre(LinearMethod):
        def create_weights(self, layer, *, input_size, output_size, dtype):  # type: ignore[no-untyped-def]
            layer.register_buffer("kept", torch.zeros(output_size, input_size, dtype=torch.int16))

        def load_weight(self, layer, weight, *, row_offset):  # type: ignore[no-untyped-def]
            layer.kept[row_offset : row_offset + weight.shape[0]] = weight.numbers

        def apply(self, layer, x, bias=None):  # type: ignore[no-untyped-def]
            return torch.nn.functional.linear(x, layer.kept.float(), bias)

        def embed(self, layer, ids):  # type: ignore[no-untyped-def]
            return layer.kept[ids].float()

    @register_quantization_config("kept_int16")
    class Kept(QuantizationConfig):
        name = "kept_int16"

        @classmethod
        def from_checkpoint(cls, hf_config):  # type: ignore[no-untyped-def]
            return cls()

        def get_linear_method(self, layer, prefix):  # type: ignore[no-untyped-def]
            return KeptAsTheyAre() if prefix == "fc" else None

    assert get_quantization_config("kept_int16") is Kept and "kept_int16" in quantization_names()
    weight, x = whole_numbers(8, 8), torch.randn(2, 8)
    layer = RowParallelLinear(8, 8, bias=False, quant_config=Kept(), prefix="fc")
    plain = RowParallelLinear(8, 8, bias=False, quant_config=Kept(), prefix="other")
    layer.load_weight(FakeQuantized(weight))
    plain.load_weight(FakeQuantized(weight))

    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight))
    torch.testing.assert_close(plain(x), layer(x))
    assert [name for name, _ in layer.named_parameters()] == []
    with pytest.raises(UnknownKey, match="kept_int16"):
        get_quantization_config("kept_int61")
    del quantization_registry._entries["kept_int16"]


def test_the_public_names_load_without_torch_being_asked_first() -> None:
    """`import graftlm.layers` is light; every name in __all__ exists."""
    import subprocess
    import sys

    import graftlm.layers

    assert all(getattr(graftlm.layers, name) is not None for name in graftlm.layers.__all__)
    modules = "graftlm.layers, graftlm.ops, graftlm.ops.names, graftlm.layers.quantization"
    check = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
