"""--quantization q8_0 and q4_0 on whole models: the tokens of transformers on the same, dequantized weights."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make_tiny_llama, make_tiny_opt_350m
from worker_runs import Engine, assert_equal_while_sure, greedy, reference

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers.quantization.at_load import QuantizingMethod

FORMATS = {"q8_0": "Q8_0", "q4_0": "Q4_0"}
PROMPTS = [[(7 * i + 3 * j) % 90 + 3 for j in range(5 + 9 * i)] for i in range(4)]
#: The tensors that give the logits, tied or not.
LOGITS = ("lm_head.weight",)
TIED_LOGITS = ("lm_head.weight", "model.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def dequantized(checkpoint: Path, target: Path, format: str) -> Path:
    """Copy a checkpoint with its linear matrices rounded to a format by the reference library."""
    from gguf import GGMLQuantizationType, quants
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, target)
    hf = json.loads((checkpoint / "config.json").read_text())
    logits = TIED_LOGITS if hf["tie_word_embeddings"] else LOGITS
    tensors = load_file(checkpoint / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and "embed_positions" not in name:
            kind = GGMLQuantizationType["Q8_0" if name in logits else format]
            numbers = quants.dequantize(quants.quantize(tensor.numpy(), kind), kind)
            tensors[name] = torch.from_numpy(numbers)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(params=["kept", "plain"])
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Blocks kept by graftlm-kernels where it is installed, and computed without it."""
    if request.param == "kept" and find_spec("graftlm_kernels") is None:
        pytest.skip("graftlm-kernels is not installed")
    if request.param == "plain":
        monkeypatch.setattr("graftlm.layers.quantization.at_load.quantization_names", lambda: ["q4_0", "q8_0"])
    return str(request.param)


@pytest.fixture(scope="module")
def models(tiny_llama: Path, tiny_opt: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quantized")
    return {
        "llama": tiny_llama,
        "llama, tied, bias": make_tiny_llama(folder / "tied", tie_word_embeddings=True, attention_bias=True),
        "opt": tiny_opt,
        "opt 350m": make_tiny_opt_350m(folder / "opt"),
    }


@pytest.mark.parametrize("method", [*FORMATS])
@pytest.mark.parametrize("model", ["llama", "llama, tied, bias", "opt", "opt 350m"])
def test_greedy_tokens_are_those_of_the_dequantized_weights(
    models: dict[str, Path], model: str, method: str, keeper: str, tmp_path: Path
) -> None:
    """Prefill in batches, decoding side by side, kept steps among them."""
    path = models[model]
    engine = Engine(path, quantization=method, kv_cache_dtype="float32")

    outputs = engine.outputs([greedy(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)])

    expected = reference(dequantized(path, tmp_path / "m", FORMATS[method]), PROMPTS)
    assert_equal_while_sure(outputs, expected)
    assert {computed_by(engine)} == {"GGUFLinearMethod" if keeper == "kept" else "UnquantizedLinearMethod"}


def computed_by(engine: Any) -> str:
    methods = [getattr(module, "linear_method", None) for module in engine.worker.model.modules()]
    found = {type(m.computed_by).__name__ for m in methods if isinstance(m, QuantizingMethod)}
    assert len(found) == 1
    return found.pop()


def test_a_checkpoint_in_half_precision_is_quantized_from_its_own_numbers(
    tiny_llama: Path, tmp_path: Path, keeper: str
) -> None:
    """As bfloat16 says, not as another rounding of it would."""
    from safetensors.torch import load_file, save_file

    half = tmp_path / "half"
    shutil.copytree(tiny_llama, half)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(half / "model.safetensors").items()}
    save_file(tensors, half / "model.safetensors", metadata={"format": "pt"})
    widened = tmp_path / "widened"
    shutil.copytree(tiny_llama, widened)
    save_file(
        {name: tensor.float() for name, tensor in tensors.items()},
        widened / "model.safetensors",
        metadata={"format": "pt"},
    )
    requests = [greedy(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]

    ours = Engine(half, quantization="q4_0").outputs(requests)

    assert ours == Engine(widened, quantization="q4_0").outputs(requests)


def test_a_gguf_file_is_not_quantized_twice(tiny_llama: Path, tmp_path: Path) -> None:
    """Its blocks are named; a file of plain numbers is quantized like any other checkpoint."""
    from gguf_files import write_llama_gguf

    write_llama_gguf(tmp_path / "q4.gguf", tiny_llama, format="Q4_1")
    write_llama_gguf(tmp_path / "f16.gguf", tiny_llama, format="F16")

    with pytest.raises(
        ModelMismatch, match=r"--quantization=q8_0: .* is quantized to Q4_1 already.*leave the flag"
    ):
        Engine(tmp_path / "q4.gguf", quantization="q8_0")
    outputs = Engine(tmp_path / "f16.gguf", quantization="q8_0").outputs([greedy("r0", PROMPTS[0])])
    assert len(outputs["r0"]) == 24
