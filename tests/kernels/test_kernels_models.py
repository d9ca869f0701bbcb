"""Whole models on the kernels: the same tokens as plain torch in float32; weights kept in their blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from graftlm_kernels.quantization import GGUFLinearMethod
from packed_cases import make_matrix

from graftlm.layers.linear import MergedColumnParallelLinear
from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight
from graftlm.plugins.current import find_host, hold_host

sys.path.append(str(Path(__file__).parents[1] / "worker"))


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def engine(path: Path, **options: Any) -> Any:
    from worker_runs import Engine

    return Engine(path, **options)


@pytest.mark.parametrize("dtype", ["float32"])
def test_float32_gives_the_tokens_of_plain_torch(tiny_llama, dtype):
    """The kernels only change the order of sums."""
    from worker_runs import greedy

    requests = [greedy(f"r{i}", [(7 * i + j) % 90 + 3 for j in range(5 + 11 * i)], max_tokens=12) for i in range(5)]
    kernels = engine(tiny_llama, dtype=dtype)
    plain = engine(tiny_llama, dtype=dtype, custom_ops=["none"], attention_backend="TORCH_PAGED")

    assert [backend.name for backend in kernels.worker.attention_backends()] == ["NATIVE_CPU"]
    assert kernels.outputs(requests) == plain.outputs(requests)


class Layer(torch.nn.Module):
    """Stands for a layer: the method keeps its state itself."""


def method_of(rows: int, columns: int) -> GGUFLinearMethod:
    from graftlm_kernels.quantization import GGUFConfig

    method = GGUFLinearMethod(GGUFConfig(), "layer")
    method.create_weights(Layer(), input_size=columns, output_size=rows, dtype=torch.float32)
    return method


def test_parts_of_a_layer_may_have_different_formats():
    """A file mixes formats: each part is multiplied in its own."""
    parts = [
        make_matrix(format, rows, 64) for format, rows in (("Q4_1", 20), ("Q8_0", 7), ("Q4_1", 5), ("float32", 9))
    ]
    method, layer = method_of(41, 64), Layer()
    start = 0
    for part in parts:
        weight = part.rows if part.format == "float32" else QuantizedGGUFWeight(part.format, part.rows)
        method.load_weight(layer, weight, row_offset=start)
        start += len(part.numbers)
    method.process_weights_after_loading(layer)
    x, bias = torch.randn(3, 64), torch.randn(41)

    expected = torch.cat([part.expected(x) for part in parts], dim=1) + bias
    torch.testing.assert_close(method.apply(layer, x, bias).double(), expected, atol=1e-4, rtol=1e-5)
    ids = torch.tensor([0, 40, 21, 26, 27])
    numbers = torch.cat([part.numbers for part in parts])
    torch.testing.assert_close(method.embed(layer, ids), numbers[ids])


def test_formats_without_a_kernel_are_dequantized_and_named_once(caplog):
    """Nobody wonders why a file takes more memory than it has bytes."""
    weight = QuantizedGGUFWeight("Q5_0", torch.randint(0, 60, (8, 22), dtype=torch.uint8))
    method, layer = method_of(16, 32), Layer()
    with caplog.at_level("INFO"):
        method.load_weight(layer, weight, row_offset=0)
        method.load_weight(layer, weight, row_offset=8)
    method.process_weights_after_loading(layer)
    x = torch.randn(2, 32)

    numbers = weight.dequantize(torch.float32)
    torch.testing.assert_close(method.apply(layer, x), x @ torch.cat([numbers, numbers]).T)
    assert caplog.text.count("weights dequantized format=Q5_0") == 1


def test_columns_of_a_shard_are_packed_from_the_file_as_they_are():
    """A row-parallel layer takes some blocks of each row, which lie apart in the file."""
    part = make_matrix("Q4_0", 12, 128)
    weight = QuantizedGGUFWeight("Q4_0", part.rows).narrow(1, 32, 64)
    method, layer = method_of(12, 64), Layer()
    method.load_weight(layer, weight, row_offset=0)
    method.process_weights_after_loading(layer)

    torch.testing.assert_close(method.embed(layer, torch.arange(12)), part.numbers[:, 32:96])


def test_merged_layers_load_their_shards_outside_of_a_build():
    """The engine's own layers are what the method serves."""
    layer = MergedColumnParallelLinear(64, [16, 16], bias=False)
    layer.linear_method = method_of(32, 64)
    parts = [make_matrix("Q8_0", 16, 64) for _ in range(2)]
    for shard, part in enumerate(parts):
        layer.load_weight(QuantizedGGUFWeight("Q8_0", part.rows), shard)
    layer.process_weights_after_loading()
    x = torch.randn(4, 64)

    assert layer.unloaded() == []
    expected = torch.cat([part.expected(x) for part in parts], dim=1)
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-4, rtol=1e-5)


def test_a_wrong_kernel_is_refused_before_it_serves(tiny_llama, tmp_path, monkeypatch):
    """--verify-ops names the op, the plugin and its code, the largest error and what was allowed."""
    from gguf_files import write_llama_gguf
    from graftlm_kernels.native import PackedWeight

    from graftlm.ops.refusal import OpRefused

    path = tmp_path / "m.gguf"
    write_llama_gguf(path, tiny_llama, format="Q4_0")
    sound = PackedWeight.multiply

    def wrong(self: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = sound(self, x, bias)
        y[4:] *= 1.01  # in batches only
        return y

    assert engine(path, verify_ops=True).config.model.quantization == "gguf"
    monkeypatch.setattr(PackedWeight, "multiply", wrong)
    with pytest.raises(OpRefused) as error:
        engine(path, verify_ops=True)

    for words in (
        "the op 'linear', computed by graftlm_kernels.quantization.GGUFLinearMethod of graftlm-kernels",
        "with 5 tokens in model.embed_tokens",
        "largest error 0.",
        "tolerance rtol=",
    ):
        assert words in str(error.value)


def test_a_server_says_which_formats_it_dequantizes(tiny_llama, tmp_path):
    """At its default log level, once for a format and not for each matrix: the weights take more than the file."""
    from gguf_files import write_llama_gguf
    from server import Server

    write_llama_gguf(tmp_path / "m.gguf", tiny_llama, format="Q5_1")
    server = Server([str(tmp_path / "m.gguf"), "--no-preload"]).start()
    server.stop()

    assert server.output.count("weights dequantized format=Q5_1") == 1, server.output


def test_two_ranks_quantize_their_own_shares(tiny_llama):
    """Each rank quantizes its rows and columns; greedy tokens are those of one rank."""
    from graftlm import LLM, SamplingParams

    prompts = [[(5 * i + j) % 90 + 3 for j in range(9)] for i in range(3)]
    found = []
    for ranks in (1, 2):
        with LLM(str(tiny_llama), quantization="q4_0", tensor_parallel_size=ranks) as llm:
            results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12), progress=False)
            found.append([result.outputs[0].token_ids for result in results])

    assert found[0] == found[1]
