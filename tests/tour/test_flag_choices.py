"""A flag that grows: a quantization method of the platform in --help, on the command line, and in the workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm
from tour_server import CORE, FRONT_END, TourServer

PLATFORM = "graftlm-dummy-platform"
WITNESS = {
    "witness_platform/__init__.py": """
        import os
        print("plugin code ran", os.getpid())

        def detect():
            return "witness_platform.platform:WitnessPlatform"
    """,
    "witness_platform/platform.py": """
        from graftlm.contracts.platform import Platform

        class WitnessPlatform(Platform):
            device_name = "Witness"

            @classmethod
            def check_and_update_config(cls, config):
                config.parallel.worker_cls = "cpu"
    """,
    "witness_platform/graftlm_plugin.toml": """
        [choices]
        quantization = ["witness_int4"]
    """,
}


def install_witness(site: Site) -> Site:
    """A platform that declares a choice and registers none."""
    points = {"platform_plugins": {"witness": "witness_platform:detect"}}
    return site.write("witness-platform", entry_points=points, files=WITNESS)


def test_help_shows_what_plugins_add_and_runs_none(site: Site, wheels: dict[str, Path]):
    """`--quantization` has the platform's method among its choices, with its distribution; so has a backend."""
    install_witness(site.install(wheels["dummy_platform"]))
    site.write("acme-attention", entry_points={"attention_backends": {"ACME": "acme_attention:Backend"}}, files={})
    done = run_graftlm("serve", "--help", env=site.environment)
    text = "".join(done.stdout.split())  # long lines are broken anywhere

    assert "plugin code ran" not in done.stdout + done.stderr
    assert "dummy_int8(graftlm-dummy-platform);witness_int4(witness-platform)." in text
    (choices,) = [w for w in done.stdout.split() if w.startswith("{") and "dummy_int8" in w]
    assert {"dummy_int8", "witness_int4"} <= set(choices.strip("{}").split(","))
    assert "ACME(acme-attention)" in text


@pytest.fixture(scope="module")
def quantized(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path, start_flags: list[str]
):
    """A tiny Llama with two workers, its weights kept by the platform's method; for both ways to start them."""
    folder = tmp_path_factory.mktemp("quantized")
    site = Site(folder / "site").install(wheels["dummy_platform"])
    flags = ["--quantization", "dummy_int8", "--tensor-parallel-size", "2", *start_flags]
    server = TourServer(site, tiny_llama, *flags, records=folder / "records")
    yield server
    server.stop()


def test_the_registered_method_is_accepted_and_present_in_the_workers(quantized: TourServer):
    """The hook registers it in the front end; the plan repeats it in both workers, which keep weights by it."""
    (here,) = quantized.events("registered", FRONT_END, registry="quantization_methods", key="dummy_int8")
    (replay,) = quantized.plan["replays"]

    assert (here["facts"]["via"], here["facts"]["owner"]) == ("hook", PLATFORM)
    assert (replay["key"], replay["value"]) == ("dummy_int8", "graftlm_dummy_platform.quantization:DummyInt8")
    for worker in quantized.workers:
        (there,) = quantized.events("registered", worker, registry="quantization_methods", key="dummy_int8")
        assert (there["facts"]["via"], there["facts"]["owner"]) == ("replay", PLATFORM)
        ledger = quantized.ledger(worker)
        assert ledger.index("registered") < ledger.index("worker_class_resolved"), "there before it is needed"
    assert not quantized.events("hook_called", CORE)
    user = quantized.events("config_stage", FRONT_END, owner="user")[0]["facts"]["changes"]
    assert user["model.quantization"] == "dummy_int8"
    assert len(quantized.complete([5, 6, 7, 8], max_tokens=6)) == 6


def test_the_rounded_weights_are_what_answers(quantized: TourServer, tiny_llama: Path):
    """Greedy ids are those of transformers over the same weights on the grid of int8."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    for name, weight in reference.named_parameters():
        if weight.dim() == 2:
            scale = weight.data.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127.0
            weight.data = (weight.data / scale).round() * scale
        assert torch.isfinite(weight).all(), name
    ids = reference.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=8, do_sample=False, eos_token_id=None)

    assert quantized.complete([5, 6, 7, 8]) == ids[0, 4:].tolist()


def test_a_declared_name_that_nothing_registers_stops_the_start(site: Site, tiny_llama: Path):
    """What --help promises is held against what the platform registered; the error names both and the cure."""
    install_witness(site)
    done = run_graftlm("serve", str(tiny_llama), "--port", "0", env=site.environment)

    assert done.returncode == 1
    assert "graftlm_plugin.toml of witness-platform declares 'witness_int4' for --quantization" in done.stderr
    assert "pre_register_and_update" in done.stderr and "Traceback" not in done.stderr


def test_a_method_of_a_platform_that_is_not_taken_is_an_unknown_name(
    site: Site, wheels: dict[str, Path], tiny_llama: Path
):
    """--platform cpu runs without the dummy's hook: its method does not exist there, and nothing warns of it."""
    site.install(wheels["dummy_platform"])
    flags = ["--platform", "cpu", "--quantization", "dummy_int8", "--port", "0"]
    done = run_graftlm("serve", str(tiny_llama), *flags, env=site.environment)

    assert done.returncode == 2 or done.returncode == 1
    assert "--quantization='dummy_int8'" in done.stderr and "choice_not_registered" not in done.stderr
