"""Stops 14 and 15 on a model that builds the replaced layer: a tiny Llama on the example platform."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import Site
from tour_server import FRONT_END, TourServer

REPLACEMENT = "graftlm_dummy_platform.rotary.DummyRotaryEmbedding"
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def llama(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path, start_flags: list[str]
) -> Iterator[TourServer]:
    """A tiny Llama on DummyDevice with two workers."""
    folder = tmp_path_factory.mktemp("llama")
    site = Site(folder / "site").install(wheels["dummy_platform"])
    flags = ["--tensor-parallel-size", "2", *start_flags]
    server = TourServer(site, tiny_llama, *flags, records=folder / "records")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path, start_flags: list[str]
) -> Iterator[TourServer]:
    """The same model on a platform without the second config hook, whose first hook registers an architecture."""
    folder = tmp_path_factory.mktemp("plain")
    site = Site(folder / "site").install(wheels["dummy_platform"], wheels["dummy_model"])
    site.write(
        "plain-platform",
        entry_points={"platform_plugins": {"plain": "plain_platform:detect"}},
        files={
            "plain_platform/__init__.py": """
                def detect():
                    return "plain_platform.platform:PlainPlatform"
            """,
            "plain_platform/platform.py": """
                from graftlm_dummy_platform.platform import DummyPlatform

                class PlainPlatform(DummyPlatform):
                    device_name = "PlainDevice"

                    @classmethod
                    def pre_register_and_update(cls, parser=None):
                        from graftlm.models import ModelRegistry

                        ModelRegistry.register_model(
                            "HookedLlamaForCausalLM", "graftlm_dummy_model.my_llama:MyLlamaForCausalLM"
                        )

                    @classmethod
                    def check_and_update_config(cls, config):
                        config.parallel.worker_cls = "graftlm_dummy_platform.worker:DummyWorker"
            """,
        },
    )
    server = TourServer(
        site, tiny_llama, "--platform", "plain", "--tensor-parallel-size", "2", *start_flags,
        "--hf-overrides", '{"architectures": ["HookedLlamaForCausalLM"]}', records=folder / "records",
    )  # fmt: skip
    yield server
    server.stop()


def test_the_default_rotary_embedding_is_swapped_and_runs_forward_oot(llama):
    """The layer that a model builds as RotaryEmbedding is the plugin's, and its own `forward_oot` runs."""
    for worker in llama.workers:
        (swapped,) = llama.events("op_swapped", worker)
        assert swapped["facts"]["cls"] == "graftlm.layers.rotary.RotaryEmbedding"
        assert swapped["facts"]["replacement"] == REPLACEMENT
        (chosen,) = llama.events("op_dispatched", worker, op="rotary_embedding")
        assert chosen["facts"]["method"] == "forward_oot"
        assert chosen["facts"]["reason"] == "own forward_oot for DummyDevice"


def test_the_swapped_layer_answers_as_the_reference_does(llama, tiny_llama):
    """Greedy ids over two workers with replaced layers are those of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    ids = reference.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None)

    assert llama.complete(PROMPT) == ids[0, len(PROMPT) :].tolist()


def test_without_the_second_hook_ops_stay_off_and_say_why(plain):
    """The platform's default 'none' holds: the swapped class runs `forward_native`, switched off by 'none'."""
    (stage,) = [
        e["facts"] for e in plain.events("config_stage") if "compilation.custom_ops" in e["facts"]["changes"]
    ]
    assert (stage["owner"], stage["changes"]["compilation.custom_ops"]) == ("platform plain", ["none"])
    for worker in plain.workers:
        assert [e["facts"]["replacement"] for e in plain.events("op_swapped", worker)] == [REPLACEMENT]
        (chosen,) = plain.events("op_dispatched", worker, op="rotary_embedding")
        assert chosen["facts"]["method"] == "forward_native"
        assert chosen["facts"]["reason"] == "switched off by none"


def test_what_the_front_end_hook_registers_exists_in_every_child(plain):
    """The architecture that `pre_register_and_update` registered is replayed, and served by the workers."""
    (replay,) = plain.plan["replays"]
    (inspected,) = plain.log("architecture inspected")

    assert (replay["key"], replay["owner"]) == ("HookedLlamaForCausalLM", "plain-platform")
    assert "architecture=HookedLlamaForCausalLM" in inspected
    assert plain.events("hook_called", FRONT_END, hook="pre_register_and_update")
    assert plain.complete(PROMPT, max_tokens=4) == [1] * 4


def test_the_platform_flag_asks_one_detector(plain):
    """`--platform NAME` chooses among two out-of-tree platforms, and asks no other detector."""
    assert [e["facts"]["name"] for e in plain.events("detector_called")] == ["plain"]
    assert plain.plan["platform"]["distribution"] == "plain-platform"
    assert plain.plugin("dummy_platform_plugin")["reason"] == "not asked: --platform plain"


_SCRIPT = """
import gc, json, sys
from graftlm import LLM, SamplingParams
from graftlm.layers.rotary import RotaryEmbedding

with LLM(sys.argv[1], hf_overrides=json.loads(sys.argv[2])) as llm:
    output = llm.generate([5, 6, 7, 8], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))[0]
    layers = [item for item in gc.get_objects() if isinstance(item, RotaryEmbedding)]
    answer = {
        "layers": [(type(x).__name__, getattr(x, "addition_config", False), x.choice.method) for x in layers],
        "hooks": [e.facts["hook"] for e in llm.host.ledger.of("hook_called")],
        "detections": llm.host.ledger.count("detector_called"),
        "tokens": len(output.outputs[0].token_ids),
    }
print(json.dumps(answer))
"""


def run_in_process(site: Site, model: Path, overrides: dict[str, object]) -> dict[str, object]:
    """Run the offline LLM in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(model), json.dumps(overrides)], env={**os.environ, **site.environment},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_subclass_of_the_replaced_layer_stays_as_it_is(site, wheels, tiny_llama):
    """Linear scaling builds a subclass of RotaryEmbedding, which is not swapped; one rank needs no communicator."""
    site.install(wheels["dummy_platform"])
    default = run_in_process(site, tiny_llama, {})
    linear = run_in_process(site, tiny_llama, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}})

    assert default["layers"] == [["DummyRotaryEmbedding", True, "forward_oot"]]
    assert linear["layers"] == [["LinearScalingRotaryEmbedding", False, "forward_native"]]
    for answer in (default, linear):
        assert answer["tokens"] == 4
        assert answer["detections"] == 6
        assert len(set(answer["hooks"])) == len(answer["hooks"]), "each hook once"
        assert "get_device_communicator_cls" not in answer["hooks"]
