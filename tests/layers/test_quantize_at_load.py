"""The methods q8_0 and q4_0: the reference library's blocks, cut between ranks only at their borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from layer_fakes import FakeQuantized, on_each_rank

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers import ColumnParallelLinear, ParallelLMHead, RowParallelLinear, VocabParallelEmbedding
from graftlm.layers.quantization.at_load import Q4_0Config, Q8_0Config, QuantizeAtLoad
from graftlm.layers.quantization.block_encoders import ENCODERS, quantize_rows
from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight


def rounded(weight: torch.Tensor, format: str) -> torch.Tensor:
    """The numbers that the reference library makes of a matrix in `format`."""
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[format]
    return torch.from_numpy(quants.dequantize(quants.quantize(weight.numpy(), kind), kind))


def difficult_rows() -> torch.Tensor:
    """Blocks of every size, of zeros, with two largest numbers of opposite sign, and of exact halves."""
    rows = torch.randn(40, 256, generator=torch.Generator().manual_seed(0))
    rows *= torch.logspace(-7, 4, 40)[:, None]
    rows[0, :64] = 0
    rows[1, 5], rows[1, 9] = 3.0, -3.0
    rows[2, :32] = torch.arange(32) - 15.5
    rows[3, :32] = (torch.arange(32) - 16) * 0.5
    return rows


@pytest.mark.parametrize("format", [*ENCODERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_are_those_of_the_reference_byte_for_byte(format: str, dtype: torch.dtype) -> None:
    """Whatever the checkpoint's number format; a block of numbers that have no inverse becomes zeros."""
    from gguf import GGMLQuantizationType, quants

    rows = difficult_rows().to(dtype)
    rows[~rows.isfinite()] = 1.0

    found = quantize_rows(rows, format)

    expected = quants.quantize(rows.float().numpy(), GGMLQuantizationType[format]).view(np.uint8)
    np.testing.assert_array_equal(found.data.numpy(), expected)
    assert found.shape == (40, 256)
    nothing = quantize_rows(torch.full((1, 32), 1e-40, dtype=dtype), format)
    assert (nothing.dequantize(torch.float32) == 0).all()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e9])
def test_numbers_without_a_place_in_the_format_are_refused(number: float) -> None:
    """A scale is a float16: an infinite one would turn the whole block into nothing."""
    rows = torch.randn(4, 64)
    rows[2, 40] = number

    with pytest.raises(ModelMismatch, match=r"has no place in Q8_0.*without --quantization"):
        quantize_rows(rows, "Q8_0")


@pytest.mark.parametrize("method", [Q8_0Config, Q4_0Config])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_ranks_together_compute_the_whole_layer(
    monkeypatch: pytest.MonkeyPatch, method: type[QuantizeAtLoad], size: int
) -> None:
    """Rows are cut anywhere, columns at block borders, so each rank has the numbers of the whole matrix."""
    torch.manual_seed(size)
    up, down, x = torch.randn(256, 64), torch.randn(40, 256), torch.randn(3, 64)

    def work() -> torch.Tensor:
        first = ColumnParallelLinear(64, 256, bias=False, quant_config=method(None))
        second = RowParallelLinear(256, 40, bias=False, reduce_results=False, quant_config=method(None))
        for layer, weight in ((first, up), (second, down)):
            layer.load_weight(weight)
            layer.process_weights_after_loading()
            assert layer.unloaded() == []
        return second(first(x))

    found = sum(on_each_rank(monkeypatch, size, work))

    expected = F.linear(F.linear(x, rounded(up, method.format)), rounded(down, method.format))
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-5)


def test_ranks_that_would_cut_a_block_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a block has a scale of its own, so the model would not be the one of a single rank."""
    with pytest.raises(ModelMismatch) as error:
        on_each_rank(monkeypatch, 2, lambda: RowParallelLinear(96, 8, quant_config=Q4_0Config(None), prefix="down"))

    for words in (
        "--quantization=q4_0",
        "--tensor-parallel-size=2",
        "48 of the 96 columns of down",
        "blocks of 32",
    ):
        assert words in str(error.value)


def test_a_matrix_without_whole_blocks_stays_plain_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """As llama.cpp falls back for such matrices; said once for the model, with their count and the first names."""
    weight, x, config = torch.randn(8, 40), torch.randn(2, 40), Q4_0Config(None)
    layers = [ColumnParallelLinear(40, 8, bias=False, quant_config=config, prefix=f"odd.{i}") for i in range(5)]
    for layer in layers:
        layer.load_weight(weight)
        layer.process_weights_after_loading()

    torch.testing.assert_close(layers[0](x), F.linear(x, weight))
    assert caplog.text.count("stay plain") == 1
    assert "blocks of 32 columns stay plain, 5 in all: odd.0 (40 columns)" in caplog.text
    assert "odd.2 (40 columns) and 2 more" in caplog.text and "odd.3" not in caplog.text


@pytest.mark.parametrize("tied", [True, False])
def test_the_matrix_that_gives_the_logits_keeps_eight_bits(tied: bool) -> None:
    """A tied embedding is that matrix; an embedding that is only looked up takes the method's format."""
    matrix, own, ids = torch.randn(30, 64), torch.randn(30, 64), torch.tensor([0, 7, 29])
    config = Q4_0Config(None)
    embedding = VocabParallelEmbedding(30, 64, quant_config=config)
    head = ParallelLMHead(30, 64, quant_config=config)
    if tied:
        head.tie_weights(embedding)
    for layer, weight in ((embedding, matrix), (head, own)):
        layer.load_weight(weight)
        layer.process_weights_after_loading()
    x = torch.randn(2, 64)

    assert torch.equal(embedding(ids), rounded(matrix, "Q8_0" if tied else "Q4_0")[ids])
    torch.testing.assert_close(head(x), F.linear(x, rounded(matrix if tied else own, "Q8_0")))


def test_weights_that_are_quantized_already_are_refused() -> None:
    """By the checkpoint's config, or by its blocks; blocks of the very format are taken as they are."""
    with pytest.raises(
        ModelMismatch, match=r"--quantization=q8_0: .* quantized with 'gptq' already; leave the flag"
    ):
        Q8_0Config.from_checkpoint({"quantization_config": {"quant_method": "gptq"}})
    layer = ColumnParallelLinear(64, 8, bias=False, quant_config=Q4_0Config(None), prefix="model.up")
    with pytest.raises(ModelMismatch, match=r"model\.up is quantized to FAKE already"):
        layer.load_weight(FakeQuantized(torch.zeros(8, 64)))
    weight = torch.randn(8, 64)
    blocks = quantize_rows(weight, "Q4_0")
    assert isinstance(blocks, QuantizedGGUFWeight)

    layer.load_weight(blocks)
    layer.process_weights_after_loading()
    x = torch.randn(2, 64)
    torch.testing.assert_close(layer(x), F.linear(x, rounded(weight, "Q4_0")))


def test_without_a_method_that_keeps_blocks_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine computes the same numbers in plain torch, in full size."""
    monkeypatch.setattr("graftlm.layers.quantization.at_load.quantization_names", lambda: ["q4_0", "q8_0"])
    config = Q8_0Config.from_checkpoint({})

    for _ in range(3):
        ColumnParallelLinear(64, 8, quant_config=config)
    assert caplog.text.count("install graftlm-kernels") == 1
