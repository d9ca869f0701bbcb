"""What a user is told of the kernels: which one runs, in which format and instruction set, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_tiny_llama
from gguf_files import write_llama_gguf
from graftlm_kernels.native import instruction_set
from plugin_packages import run_graftlm
from server import Server

from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod


@pytest.fixture(scope="module")
def quantized(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "tiny.gguf"
    write_llama_gguf(path, tiny_llama, format="Q4_1")
    return path


def explain(*words: str, environment: dict[str, str] | None = None) -> str:
    done = run_graftlm("plugins", "explain", *words, env=environment)
    assert done.returncode == 0, done.stderr
    told: str = done.stdout
    return told


def test_an_op_is_explained_with_its_instruction_set() -> None:
    """Also the op that no layer names, and for an instruction set that was asked for."""
    assert f"instruction set: {instruction_set()} (rms_norm.graftlm_kernels)" in explain("op", "rms_norm")
    told = explain("op", "linear", environment={"GRAFTLM_KERNELS_PATH": "generic"})
    assert "instruction set: generic (linear.graftlm_kernels)" in told


def test_weights_in_blocks_are_explained_with_their_format(tiny_llama: Path, quantized: Path) -> None:
    """Where the quantization method multiplies instead of the op, it is named."""
    told = explain("op", "linear", "--model", str(quantized))
    assert "the quantization method gguf of graftlm-kernels" in told.splitlines()[0]
    assert "format: 10 × Q4_1" in told
    told = explain("op", "linear", "--model", str(tiny_llama))
    assert "linear.graftlm_kernels runs" in told.splitlines()[0]
    assert "format: float32" in told


def test_a_server_tells_in_which_formats_it_keeps_its_weights(quantized: Path) -> None:
    """It knows them from what it has loaded."""
    with Server([str(quantized)]) as server:
        told = explain("op", "linear", "--url", server.base_url)

    assert "graftlm_kernels.quantization.GGUFLinearMethod" in told.splitlines()[0]
    assert f"weights in Q4_1, {instruction_set()}; in engine core (" in told


@pytest.fixture(scope="module")
def checkpoints(tiny_llama: Path, quantized: Path) -> dict[str, Path]:
    """Some whose weights the kernels keep as they are, and some whose they do not."""
    folder = quantized.parent
    write_llama_gguf(folder / "q5.gguf", tiny_llama, format="Q5_0")
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12}
    odd = make_tiny_llama(folder / "odd", hidden_size=72, intermediate_size=100, **heads)
    half = make_tiny_llama(folder / "half", intermediate_size=100)
    return {"Q4_1": quantized, "Q5_0": folder / "q5.gguf", "plain": tiny_llama, "odd": odd, "half": half}


@pytest.mark.parametrize(
    ("name", "flags", "formats"),
    [
        ("Q4_1", [], "10 × Q4_1"),
        ("Q5_0", [], "10 × float32"),
        ("Q4_1", ["--disable-plugin", "graftlm-kernels"], "float32"),
        ("plain", [], "float32"),
        ("plain", ["--quantization", "q4_0"], "9 × Q4_0, 1 × Q8_0"),
        ("odd", ["--quantization", "q8_0"], "float32"),
        ("half", ["--quantization", "q8_0"], "8 × Q8_0, 2 × float32"),
    ],
)
def test_what_will_run_is_what_a_server_runs(
    checkpoints: dict[str, Path], name: str, flags: list[str], formats: str
) -> None:
    """In which formats, with which instructions, by whom, and what was refused: of a checkpoint and of a server."""
    model = [str(checkpoints[name]), *flags]
    (told,) = json.loads(explain("op", "linear", "--json", "--model", *model))
    with Server(model) as server:
        (asked,) = json.loads(explain("op", "linear", "--json", "--url", server.base_url))

    assert told["facts"]["format"] == formats
    assert f"{instruction_set()} (" in told["facts"].get("instruction set", "") or "graftlm-kernels" in flags
    methods = {c["name"]: c["reason"] for c in told["candidates"] if "weights in" in c.get("reason", "")}
    kept = {c["name"]: c["reason"] for c in asked["candidates"] if "weights in" in c.get("reason", "")}
    assert methods == {n: reason.replace("; in engine core", "") for n, reason in kept.items()}
    plain = [c["reason"] for c in asked["candidates"] if c["name"] == "linear.graftlm_kernels"]
    assert bool(plain) is ("linear.graftlm_kernels runs" in told["answer"])
    assert ("built" in told["facts"]) is (bool(plain) or "graftlm-kernels" in flags)
    assert all(f"; float32, {instruction_set()}; in engine core (" in reason for reason in plain)
    assert refused(told, "q8_0") == refused(asked, "q8_0")
    assert bool(refused(told, "q8_0")) is (name in ("odd", "half"))
    method = f"{UnquantizedLinearMethod.__module__}.{UnquantizedLinearMethod.__qualname__}"
    method = method if "graftlm-kernels" in flags else "graftlm_kernels.quantization.GGUFLinearMethod"
    lost = name if name == "Q5_0" or "graftlm-kernels" in flags else None
    said = {f"it keeps no {lost}, which is dequantized (10 layers)"} if lost else set()
    assert refused(told, method) == refused(asked, method) == said


def refused(explanation: dict[str, Any], name: str) -> set[str]:
    """Return why a method was refused, wherever that was."""
    found = [c for c in explanation["candidates"] if c["state"] == "refused" and c["name"] == name]
    return {c["reason"].replace("; in engine core", "") for c in found}


def test_weights_that_a_method_refuses_are_refused_as_at_a_start(quantized: Path) -> None:
    """A file of blocks is not quantized again: the same sentence, and code 1."""
    flags = [str(quantized), "--quantization", "q8_0"]
    done = run_graftlm("plugins", "explain", "op", "linear", "--json", "--model", *flags)
    started = run_graftlm("run", *flags, "-p", "hi", "--max-tokens", "1")

    (told,) = json.loads(done.stdout)
    assert done.returncode == 1 and not told["answer"]
    assert "is quantized to Q4_1 already, and a second rounding would only lose" in told["error"]
    assert told["error"] in started.stderr


def test_a_server_tells_format_and_instruction_set_of_every_op(tiny_llama: Path) -> None:
    """Of the model's ops and of the sampler's, which the answer for a checkpoint knows, too."""
    told = explain("op", "choose_tokens", "--model", str(tiny_llama))
    assert "choose_tokens.graftlm_kernels runs" in told and "format: float32" in told
    with Server([str(tiny_llama)]) as server:
        for op in ("linear", "rms_norm", "choose_tokens"):
            told = explain("op", op, "--url", server.base_url)
            assert f"provider {op}.graftlm_kernels; float32, {instruction_set()}; in engine core (" in told


def test_an_instruction_set_that_cannot_run_is_one_sentence(tiny_llama: Path) -> None:
    """Its name comes from the user, so there is no traceback."""
    done = run_graftlm(
        "run", str(tiny_llama), "-p", "hi", "--max-tokens", "1", env={"GRAFTLM_KERNELS_PATH": "neon"}
    )

    assert done.returncode != 0
    assert "GRAFTLM_KERNELS_PATH: kernels path 'neon' is not known; set avx512, avx2 or generic" in done.stderr
    assert "Traceback" not in done.stderr
