"""The benchmarks that bring their own engine: they end, and their numbers belong together."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def bench(*words: str) -> dict:
    command = [sys.executable, "-m", "graftlm", "bench", words[0], "--json", "-", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_throughput_counts_every_token(tiny_llama):
    """Prompts and answers of exactly the lengths asked for."""
    result = bench("throughput", str(tiny_llama), "--num-prompts", "5", "--input-len", "7", "--output-len", "3")

    assert (result["prompt_tokens"], result["output_tokens"]) == (35, 15)
    assert result["output_tokens_per_s"] == pytest.approx(15 / result["duration_s"])


def test_latency_measures_each_batch(tiny_llama):
    """Warm-ups are left out."""
    words = ["--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1", "--input-len", "4"]
    result = bench("latency", str(tiny_llama), *words, "--output-len", "2")

    assert len(result["seconds"]) == 3
    assert min(result["seconds"]) <= result["median"] <= result["p99"]


def test_startup_stands_beside_the_import_of_torch(tiny_llama):
    """The port answers before the engine is ready, and that before the first token."""
    seconds = bench("startup", str(tiny_llama), "--rounds", "1", "--", "--max-model-len", "64")["seconds"]

    assert 0 < seconds["answered_s"][0] < seconds["ready_s"][0] < seconds["first_token_s"][0]
    assert seconds["over_torch_s"][0] == pytest.approx(seconds["first_token_s"][0] - seconds["torch_s"][0])


def test_plugins_are_priced_by_process_and_call(tiny_llama):
    """The model's own plugin costs something in the core; every op has a price."""
    result = bench("plugins", str(tiny_llama), "--rounds", "1", "--calls", "14")

    assert result["start_ms"]["graftlm:LlamaForCausalLM"]["engine core"] > 0
    assert {"rms_norm", "rotary_embedding", "silu_and_mul"} <= {row["op"] for row in result["ops"]["calls"]}
    assert all(row["ns"] > 0 for row in result["ops"]["calls"])


def test_a_server_that_cannot_start_is_the_last_word(tmp_path):
    """Its own words, not a time-out."""
    done = subprocess.run(
        [sys.executable, "-m", "graftlm", "bench", "startup", str(tmp_path / "nothing"), "--rounds", "1"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert done.returncode == 1
    assert "ended with exit code 1" in done.stderr
    assert "nothing" in done.stderr.splitlines()[-1]
