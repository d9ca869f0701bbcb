"""What a user is told of the kernels: which one runs, in which format and instruction set, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import write_llama_gguf
from graftlm_kernels.native import instruction_set
from plugin_packages import run_graftlm
from server import Server


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
    assert "format: 16 × Q4_1" in told
    told = explain("op", "linear", "--model", str(tiny_llama))
    assert "linear.graftlm_kernels runs" in told.splitlines()[0]
    assert "format: float32" in told


def test_a_server_tells_in_which_formats_it_keeps_its_weights(quantized: Path) -> None:
    """It knows them from what it has loaded."""
    with Server([str(quantized)]) as server:
        told = explain("op", "linear", "--url", server.base_url)

    assert "graftlm_kernels.quantization.GGUFLinearMethod" in told.splitlines()[0]
    assert f"weights in Q4_1, {instruction_set()}; in engine core (" in told


def test_an_instruction_set_that_cannot_run_is_one_sentence(tiny_llama: Path) -> None:
    """Its name comes from the user, so there is no traceback."""
    done = run_graftlm(
        "run", str(tiny_llama), "-p", "hi", "--max-tokens", "1", env={"GRAFTLM_KERNELS_PATH": "neon"}
    )

    assert done.returncode != 0
    assert "GRAFTLM_KERNELS_PATH: kernels path 'neon' is not known; set avx512, avx2 or generic" in done.stderr
    assert "Traceback" not in done.stderr
