"""Llama and OPT held against transformers in fp32, at the level of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make_tiny_llama, make_tiny_opt, make_tiny_opt_350m
from gguf_files import reference_from_gguf, write_llama_gguf
from model_runs import load, logits_of, model_config
from safetensors.torch import load_file, save_file

from graftlm.contracts.errors import StartupError
from graftlm.models.checkpoints.errors import MissingTensors
from graftlm.models.loader import load_model

PROMPTS = [[5, 17, 201, 3, 3, 90, 44, 7, 260, 1, 33, 12, 8, 9, 10, 11, 77, 5, 6, 120], [7, 9, 200], [1] * 30]


def reference_logits(path: Path, prompts: list[list[int]], **options: Any) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


def assert_like_reference(path: Path, prompts: list[list[int]] = PROMPTS) -> None:
    expected = reference_logits(path, prompts)
    model = load(path)
    for chunks in ([], [7, 1, 1, 4]):
        found = logits_of(model, prompts, chunks=chunks)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert theirs.std() > 0.5, "the checkpoint is too tame to tell right from wrong"


LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 1000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 32, "num_key_value_heads": 1},
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
        {"rope_parameters": LLAMA3_SCALING},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ],
    ids=["plain", "biases", "tied", "wide-heads", "all-heads", "linear-rope", "llama3-rope", "other-base"],
)
def test_llama_computes_what_transformers_computes(overrides: dict[str, Any], tmp_path: Path) -> None:
    """Logits of every position equal the reference's, in one step and in chunks, for each variant of the config."""
    assert_like_reference(make_tiny_llama(tmp_path, **overrides))


def test_llama_reads_the_older_spelling_of_rope_scaling(tmp_path: Path) -> None:
    """rope_theta and rope_scaling, as most checkpoints say it, mean what rope_parameters means."""
    path = make_tiny_llama(tmp_path, rope_parameters=LLAMA3_SCALING)
    expected = reference_logits(path, PROMPTS)
    hf = json.loads((path / "config.json").read_text())
    scaling = hf.pop("rope_parameters")
    hf |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (path / "config.json").write_text(json.dumps(hf))

    found = logits_of(load(path), PROMPTS, chunks=[])

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_opt_computes_what_transformers_computes(activation: str, tmp_path: Path) -> None:
    """Logits of every position equal the reference's, in one step and in chunks: positions begin at row 2."""
    assert_like_reference(make_tiny_opt(tmp_path, activation_function=activation))


def test_opt_350m_computes_what_transformers_computes(tmp_path: Path) -> None:
    """Norms after the blocks, narrow embeddings with projections, and no final norm."""
    assert_like_reference(make_tiny_opt_350m(tmp_path))


@pytest.mark.parametrize("format", ["F16", "Q4_0", "Q5_1", "Q6_K"])
def test_a_gguf_file_computes_what_its_meaning_computes(format: str, tmp_path: Path) -> None:
    """A llama GGUF gives the logits of the reference filled with the weights that the GGUF library reads."""
    path = make_tiny_llama(
        tmp_path / "hf", hidden_size=256, intermediate_size=512, num_attention_heads=8, initializer_range=0.1
    )
    meaning = write_llama_gguf(tmp_path / "m.gguf", path, format=format)
    save_file(
        {name: torch.from_numpy(values.copy()) for name, values in meaning.items()},
        path / "model.safetensors", metadata={"format": "pt"},
    )  # fmt: skip
    expected = reference_logits(path, PROMPTS)

    found = logits_of(load(tmp_path / "m.gguf"), PROMPTS, chunks=[])

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.demo
def test_the_demo_computes_what_transformers_computes(demo_path: Path) -> None:
    """The demo's next-token scores equal those of transformers reading the same file, for three prompts."""
    prompts = [[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47], [504, 3575, 282, 4649, 314], [28120, 28]]
    reference = reference_from_gguf(demo_path)
    assert reference.lm_head.weight is reference.model.embed_tokens.weight
    with torch.inference_mode():
        expected = [reference(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]
    del reference

    found = logits_of(load(demo_path), prompts, chunks=[])

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[-1], theirs, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    """A checkpoint that lacks one tensor is refused, and the error says which, by the checkpoint's own name."""
    path = make_tiny_llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(MissingTensors) as raised:
        load_model(model_config(path), torch.device("cpu"))

    assert name in str(raised.value)
    assert isinstance(raised.value, StartupError)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    """Weights of another architecture are refused instead of being passed over."""
    path = make_tiny_llama(tmp_path, attention_bias=True)

    with pytest.raises(Exception, match=r"q_proj|qkv_proj"):
        load(path, attention_bias=False)
