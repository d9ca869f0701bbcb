"""Models that are not there, broken, or not what their config says: one sentence before anything is served."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_packages import Site
from refusals import FAILED, refusal, run_graftlm

Spoiled = Callable[..., str]


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("no-such-model", ["'no-such-model'", "not found", "hub id such as org/name"]),
        ("demmo", ["'demmo'", "did you mean 'demo'"]),
        ("./no/such/model", ["'./no/such/model'", "does not exist", "a .gguf file"]),
        ("s3://bucket/model", ["no model source is called 's3'", "demo, local, hf"]),
        ("", ["''", "give 'demo'"]),
    ],
)
def test_a_missing_model_is_named_with_what_could_be_given(model: str, parts: list[str]) -> None:
    """Paths, near misses, schemes that nothing provides, and nothing at all."""
    line = refusal("serve", model)

    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["it has only 0 bytes", "fetch it again"]),
        (b"GG", ["it has only 2 bytes"]),
        (b"this is a text and no model at all", ["starts with b'this' instead of b'GGUF'"]),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), ["its GGUF version is 9", "version 3"]),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["big-endian"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60), ["truncated"]),
    ],
)
def test_a_file_that_is_no_gguf_is_named(content: bytes, parts: list[str], tmp_path: Path) -> None:
    """Empty, text, another version, another byte order, a header that promises too much."""
    file = tmp_path / "model.gguf"
    file.write_bytes(content)

    line = refusal("serve", str(file))

    assert all(part in line for part in [str(file), *parts]), line


@pytest.mark.parametrize("kept", [100, 3000, 300_000])
def test_a_truncated_gguf_says_where_it_ends(kept: int, tiny_gguf: Path, tmp_path: Path) -> None:
    """Cut in its header, in its vocabulary, and in its weights."""
    file = tmp_path / "cut.gguf"
    file.write_bytes(tiny_gguf.read_bytes()[:kept])

    line = refusal("serve", str(file))

    assert "it is truncated" in line and str(kept) in line and "again" in line, line


def test_an_empty_directory_says_what_belongs_there(tmp_path: Path) -> None:
    """Neither a config nor a .gguf file."""
    line = refusal("serve", str(tmp_path))

    assert "found nothing" in line and "config.json and .safetensors files, or a .gguf file" in line


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"config.json": b'{"a": '}, ["config.json", "no JSON"]),
        ({"config.json": b"[]"}, ["config.json", "no JSON object"]),
        ({"config.json": b"\xff\xfe"}, ["config.json", "not UTF-8"]),
        ({"config.json": b"[" * 100_000}, ["config.json", "nested too deep"]),
        ({"model.safetensors": None}, ["no .safetensors file", "save the weights as safetensors"]),
        ({"model.safetensors": b""}, ["model.safetensors", "header is damaged"]),
        ({"model.safetensors": b"\xff" * 5000}, ["model.safetensors", "header is damaged"]),
        ({"generation_config.json": b"{"}, ["generation_config.json", "no JSON"]),
        ({"model.safetensors.index.json": b'{"weight_map": 3}'}, ["index.json", "weight_map"]),
        (
            {
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model-1-of-2.safetensors"}}
                ).encode()
            },
            ["model-1-of-2.safetensors", "fetch the missing files"],
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_directory_with_a_broken_file_names_the_file(
    files: dict[str, bytes | None], parts: list[str], spoiled: Spoiled
) -> None:
    """Whatever is wrong with it."""
    line = refusal("serve", spoiled(files=files))

    assert all(part in line for part in parts), line


def test_truncated_weights_say_where_they_end(tiny_llama: Path, spoiled: Spoiled) -> None:
    """Half of a .safetensors file is found by its header, before torch is imported."""
    half = (tiny_llama / "model.safetensors").read_bytes()[:200_000]

    line = refusal("serve", spoiled(files={"model.safetensors": half}))

    assert "it is truncated" in line and "the file has 200000" in line and "fetch it again" in line, line


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"num_attention_heads": "many"}, ["num_attention_heads='many'", "positive whole number"]),
        ({"hidden_size": -64}, ["hidden_size=-64", "--hf-overrides"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"num_hidden_layers": 2.5}, ["num_hidden_layers=2.5"]),
        ({"max_position_embeddings": 10**12}, ["max_position_embeddings=1000000000000"]),
        ({"rms_norm_eps": "small"}, ["rms_norm_eps='small'", "positive number"]),
        ({"rope_parameters": [1]}, ["rope_parameters=[1]", "JSON object"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, ["factor must be a positive number"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads=3", "does not divide num_attention_heads=4"]),
        ({"architectures": "LlamaForCausalLM"}, ["'architectures' must be a list", "--hf-overrides"]),
        ({"architectures": []}, ["names no architecture", "--hf-overrides"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantized with 'awq'", "install a plugin"]),
        ({"quantization_config": "awq"}, ["quantization_config='awq'", "JSON object"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_config_that_cannot_be_names_the_entry_and_its_value(
    config: dict[str, Any], parts: list[str], spoiled: Spoiled
) -> None:
    """Each with the flag that puts it right."""
    line = refusal("serve", spoiled(config=config))

    assert all(part in line for part in parts), line


def test_an_unknown_architecture_comes_with_near_names_and_the_plugin_that_could_help(
    spoiled: Spoiled, tmp_path: Path
) -> None:
    """A plugin that provides it is installed, but was disabled."""
    site = Site(tmp_path / "site").write(
        "acme-models",
        entry_points={"models": {"LlamaForCausalLMX": "acme_models:Model"}},
        files={"acme_models.py": "class Model: ..."},
    )
    path = spoiled(config={"architectures": ["LlamaForCausalLMX"]})

    unknown = refusal("serve", path)
    disabled = refusal("serve", path, "--disable-plugin", "LlamaForCausalLMX", env=site.environment)

    assert "['LlamaForCausalLMX']" in unknown and "did you mean 'LlamaForCausalLM'" in unknown
    assert "supported architectures: LlamaForCausalLM, OPTForCausalLM" in unknown
    assert "acme-models" in disabled and "provides it but is disabled" in disabled, disabled


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_tensor_is_named_as_the_checkpoint_would(workers: int, spoiled: Spoiled) -> None:
    """The part of a merged layer, not the layer; one error, however many workers miss it."""
    name = "model.layers.1.mlp.up_proj.weight"

    line = refusal("serve", spoiled(tensors=lambda t: t.pop(name)), "--port=0", f"--tensor-parallel-size={workers}")

    assert name in line and "fetch it again" in line, line


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (np.zeros((100, 64), np.float32), ["has shape [100, 64]", "expects [128, 64]"]),
        (np.zeros((128, 64), np.int8), ["holds int8 numbers", "--quantization"]),
    ],
    ids=["shape", "integers"],
)
def test_a_tensor_that_does_not_fit_is_named(values: np.ndarray, parts: list[str], spoiled: Spoiled) -> None:
    """A wrong shape with both shapes; whole numbers are not taken for weights."""
    name = "model.layers.1.mlp.up_proj.weight"

    line = refusal("serve", spoiled(tensors=lambda t: t.update({name: values})), "--port=0")

    assert all(part in line for part in [name, *parts]), line


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"without": "rms_norm_eps"}, ["'rms_norm_eps'", "--hf-overrides"]),
        ({"config": {"rope_parameters": {"rope_type": "yarn", "factor": 4}}}, ["'yarn'", "linear, llama3"]),
        ({"config": {"vocab_size": 2**31 - 1}}, ["do not fit into the memory", "--dtype=float32"]),
    ],
    ids=["missing-entry", "unknown-rope", "too-large"],
)
def test_what_only_the_model_can_tell_is_one_sentence_too(
    change: dict[str, Any], parts: list[str], spoiled: Spoiled
) -> None:
    """It comes out of the process that builds the model, and names the checkpoint."""
    path = spoiled(**change)

    line = refusal("serve", path, "--port=0")

    assert all(part in line for part in parts), line


def test_a_wrong_format_for_the_path_is_said(tiny_llama: Path, tiny_gguf: Path) -> None:
    """--load-format asks one loader, whatever it is given."""
    assert "Is a directory" in refusal("serve", str(tiny_llama), "--load-format=gguf")
    assert "Not a directory" in refusal("serve", str(tiny_gguf), "--load-format=safetensors")
    assert "choose auto or one of gguf, safetensors" in refusal("serve", str(tiny_llama), "--load-format=awk")


def test_most_refusals_import_no_torch(tmp_path: Path) -> None:
    """They come before it, which takes longer than all else."""
    profiled = {"PYTHONPROFILEIMPORTTIME": "1"}
    code, _, stderr = run_graftlm("serve", str(tmp_path / "none.gguf"), env=profiled)
    imported = {line.rpartition("|")[2].strip() for line in stderr.splitlines() if "import time:" in line}

    assert code == FAILED and "none.gguf" in stderr
    assert "graftlm" in imported and "torch" not in imported


def test_a_file_name_that_is_no_utf8_is_refused_with_the_cure(tmp_path: Path, tiny_gguf: Path) -> None:
    """Paths are shown to clients and cross processes as UTF-8."""
    folder = bytes(tmp_path) + b"/\xff\xfe"
    Path(folder.decode(errors="surrogateescape")).mkdir()
    link = folder + b"/model.gguf"
    Path(link.decode(errors="surrogateescape")).symlink_to(tiny_gguf)
    (tmp_path / "through").symlink_to(folder.decode(errors="surrogateescape"))
    real = Path(folder.decode(errors="surrogateescape")) / "real.gguf"
    real.write_bytes(tiny_gguf.read_bytes())

    assert "is not UTF-8" in refusal("serve", link, code=2)
    assert "is not UTF-8" in refusal("serve", str(tmp_path / "through" / "real.gguf"))
