"""What plugins cost per call: nothing. A profile of decode steps with a replaced op and a hundred idle packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from plugin_packages import Site

_SCRIPT = """
import collections, json, sys
from graftlm import LLM, SamplingParams
from graftlm.worker.model_runner import ModelRunner

called, steps = collections.Counter(), 0

def note(frame, event, _):
    if event == "call":
        called[f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"] += 1

execute = ModelRunner.execute_step

def profiled(self, plan):
    global steps
    if plan.new:  # the prompt's step; what is asked is what every token costs
        return execute(self, plan)
    steps += 1
    sys.setprofile(note)
    try:
        return execute(self, plan)
    finally:
        sys.setprofile(None)

with LLM(sys.argv[1], platform="cpu", seed=1) as llm:
    # Long enough that a step of this size is kept (from its third time on): keeping it runs the model once more.
    llm.generate([5, 6, 7], SamplingParams(max_tokens=6, ignore_eos=True, top_p=0.9, seed=1), progress=False)
    ModelRunner.execute_step = profiled
    llm.generate([5, 6, 7], SamplingParams(max_tokens=6, ignore_eos=True, top_p=0.9, seed=1), progress=False)
    swaps = [e.facts["replacement"] for e in llm.host.ledger.of("op_swapped")]
    idle = sum(row["state"] == "idle" for row in llm.host.describe()["plugins"] if row["name"].startswith("Idle"))
print(json.dumps({"called": called, "steps": steps, "swaps": swaps, "idle": idle,
                  "imported": [name for name in sys.modules if name.startswith("idle_")]}))
"""

_SILU = """
import torch
from graftlm.layers import SiluAndMul

class OwnSilu(SiluAndMul):
    def forward_cpu(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
"""


def profile(site: Site, model: Path, cache: Path) -> dict[str, Any]:
    """Run the script in an interpreter of its own and return what it saw."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(model)],
        env={**os.environ, **site.environment, "GRAFTLM_CACHE": str(cache)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_decode_step_looks_nothing_up_and_calls_no_plugin_machinery(
    site: Site, tiny_llama: Path, tmp_path: Path
) -> None:
    """Of graftlm.plugins and the code that chooses there is no frame; the replacement runs once for each layer."""
    point = {"custom_ops": {"graftlm.layers.activation.SiluAndMul": "own_silu:OwnSilu"}}
    site.write("own-silu", entry_points=point, files={"own_silu.py": _SILU})
    for i in range(100):
        models = {"models": {f"Idle{i}ForCausalLM": f"idle_{i}:Model"}}
        site.write(f"idle-{i}", entry_points=models, files={f"idle_{i}.py": "raise SystemExit('imported')\n"})
    seen = profile(site, tiny_llama, tmp_path / "cache")
    modules = {name.partition(":")[0] for name in seen["called"]}

    assert (seen["steps"], seen["idle"], seen["imported"]) == (5, 100, [])
    assert seen["swaps"] == ["own_silu.OwnSilu"]
    machinery = {
        m for m in modules if m.startswith(("graftlm.plugins", "graftlm.platforms", "importlib"))
        or m in ("graftlm.ops.dispatch", "graftlm.ops.pluggable", "graftlm.ops.entry_points", "graftlm.ops.build",
                 "graftlm.ops.kernel_functions", "graftlm.ops.attention.selector")
    }  # fmt: skip
    assert machinery == set()
    (own,) = [count for name, count in seen["called"].items() if name.startswith("own_silu:")]
    assert own == 2 * seen["steps"], "two layers"
    assert "graftlm.worker.model_runner" in modules
