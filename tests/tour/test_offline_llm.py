"""The offline LLM: what a program registered before it exists in the workers as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from graftlm import LLM, SamplingParams
from graftlm.models import ModelRegistry

ModelRegistry.register_model("ProgramForCausalLM", "graftlm_dummy_model.my_opt:MyOPTForCausalLM")
overrides = {"architectures": ["ProgramForCausalLM"]}
with LLM(sys.argv[1], hf_overrides=overrides, tensor_parallel_size=2, start_method=sys.argv[2]) as llm:
    outputs = llm.generate([[5, 6, 7], [8]], SamplingParams(max_tokens=4, ignore_eos=True))
    answer = {
        "tokens": [output.outputs[0].token_ids for output in outputs],
        "processes": sorted(llm.host.children),
        "detections": len([e for e in llm.host.events() if e["event"] == "detector_called"]),
        "hooks": llm.host.ledger.count("hook_called", hook="pre_register_and_update"),
    }
print(json.dumps(answer))
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_what_a_program_registers_exists_in_its_workers(site, wheels, tiny_opt, tmp_path, start_method):
    """A script registers an architecture and makes an LLM of two workers: both have it; nothing detects twice."""
    site.install(wheels["dummy_platform"], wheels["dummy_model"])
    env = {**os.environ, **site.environment, "GRAFTLM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_opt), start_method],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])

    assert answer["tokens"] == [[0] * 4, [0] * 4]
    assert answer["processes"] == ["worker 0", "worker 1"]
    assert (answer["detections"], answer["hooks"]) == (6, 1)
