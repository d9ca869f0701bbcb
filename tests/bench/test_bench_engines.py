"""The benchmarks that bring their own engine: they end, and their numbers belong together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from plugin_packages import Site

from graftlm.cli.bench.launch import LaunchFailed
from graftlm.cli.bench.startup import seconds_of


def bench(*words: str, env: Mapping[str, str] | None = None) -> dict:
    command = [sys.executable, "-m", "graftlm", "bench", words[0], "--json", "-", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **(env or {})})
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
    result = bench("plugins", str(tiny_llama), "--rounds", "1", "--calls", "14", "--requests", "2")

    assert result["start_ms"]["graftlm:LlamaForCausalLM"]["engine core"] > 0
    assert {"rms_norm", "rotary_embedding", "silu_and_mul"} <= {row["op"] for row in result["ops"]["calls"]}
    assert all(row["ns"] > 0 for row in result["ops"]["calls"])
    assert {row["kind"] for row in result["serving"]["calls"]} == {"core route"}, "no plugin but the engine's own"
    assert result["serving"]["not_called"] == {}


SLOW_OPS = """
    import time
    from graftlm.layers.activation import SiluAndMul
    from graftlm.ops.implementation import OpImplementation

    time.sleep(0.05)

    class SlowSilu(SiluAndMul):
        def forward_cpu(self, x):
            time.sleep(0.002)
            return self.forward_native(x)

    class SlowNorm(OpImplementation):
        @classmethod
        def supports(cls, *, device, dtype, shape):
            return True

        def __init__(self, op):
            self.op = op

        def __call__(self, *args):
            time.sleep(0.004)
            return self.op.forward_native(*args)
"""


def test_what_a_plugin_costs_is_what_it_takes(tmp_path, tiny_llama):
    """Sleeps of known length are found where they are slept; flags of the server choose what is measured."""
    site = Site(tmp_path / "site").write(
        "slow-ops",
        entry_points={
            "custom_ops": {"graftlm.layers.activation.SiluAndMul": "slow_ops:SlowSilu"},
            "op_implementations": {"rms_norm.slow": "slow_ops:SlowNorm"},
        },
        files={"slow_ops.py": SLOW_OPS},
    )
    site.write(
        "slow-start",
        entry_points={"general_plugins": {"late": "slow_start:register"}, "models": {"NeverForCausalLM": "x:Y"}},
        files={"slow_start.py": "import time\n\ndef register():\n    time.sleep(0.03)\n"},
    )
    words = ["plugins", str(tiny_llama), "--rounds", "1", "--calls", "7", "--no-serving"]
    result = bench(*words, env=site.environment)
    start = result["start_ms"]
    rows = {(row["op"], row["chosen"]): row for row in result["ops"]["calls"]}
    leaner = bench(*words, "--", "--disable-plugin=late", "--op-providers=slow", env=site.environment)

    assert start["slow-start:late"]["front end"] >= 30
    assert start["slow-start:late"]["engine core"] >= 30
    assert start["slow-ops:graftlm.layers.activation.SiluAndMul"]["engine core"] >= 50
    assert "slow-start:NeverForCausalLM" in result["idle"]
    assert rows["silu_and_mul", True]["ns"] >= 2e6
    assert rows["rms_norm", False]["ns"] >= 4e6
    assert rows["rms_norm", False]["provider"] == "slow-ops 1.0"
    assert rows["rms_norm", True]["method"] != "rms_norm.slow"
    assert "slow-start:late" not in leaner["start_ms"]
    assert {row["method"] for row in leaner["ops"]["calls"] if row["op"] == "rms_norm" and row["chosen"]} == {
        "rms_norm.slow"
    }


def test_a_server_that_cannot_start_is_the_last_word(tmp_path):
    """Its own words, not a time-out."""
    done = subprocess.run(
        [sys.executable, "-m", "graftlm", "bench", "startup", str(tmp_path / "nothing"), "--rounds", "1"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert done.returncode == 1
    assert "ended with exit code 1" in done.stderr
    assert "nothing" in done.stderr.splitlines()[-1]


def test_as_many_workers_as_no_server_takes_are_not_tried(tmp_path):
    """The server refuses the flag; no interpreter was started for each of them."""
    words = ["bench", "startup", str(tmp_path), "--rounds", "1", "--", "-tp", "99999"]
    done = subprocess.run([sys.executable, "-m", "graftlm", *words], capture_output=True, text=True, timeout=240)

    assert done.returncode == 1
    assert "--tensor-parallel-size=99999: it is out of range" in done.stderr.splitlines()[-1]


def test_what_is_timed_beside_a_server_hears_no_ctrl_c_and_fails_in_one_sentence():
    """It leads a process group of its own, so its traceback is not shown; a failure ends with its last words."""
    assert seconds_of(["-c", "import os; assert os.getpgrp() == os.getpid()"]) > 0
    with pytest.raises(LaunchFailed, match=r"(?s)exit code 1; its last words:\nKeyError: 7$"):
        seconds_of(["-c", "{}[7]"], at_once=2)
    with pytest.raises(LaunchFailed, match=r"exit code 3 and wrote nothing$"):
        seconds_of(["-c", "raise SystemExit(3)"])
