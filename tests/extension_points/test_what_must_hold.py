"""Rules that hold for every point, through the real command line; most need no running engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import Site, run_graftlm


def listed(site: Site, *flags: str) -> dict[str, dict[str, Any]]:
    """Return the rows of `graftlm plugins --json` by point=name."""
    done = run_graftlm("plugins", "--json", *flags, env=site.environment)
    assert done.returncode == 0, done.stderr
    return {f"{row['point']}={row['name']}": row for row in json.loads(done.stdout)["plugins"]}


def refusal(site: Site, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a `graftlm serve` says that must not start."""
    done = run_graftlm("serve", *arguments, "--port=0", env={**site.environment, **(env or {})})
    assert done.returncode == 1, done.stderr
    assert "graftlm: error: " in done.stderr
    return done.stderr.rpartition("graftlm: error: ")[2]


def write_detector(site: Site, *, answer: str) -> None:
    """Install a platform plugin whose detector's body ends with `answer`."""
    site.write(
        "acme-device",
        entry_points={"platform_plugins": {"acme": "acme_device:detect"}},
        files={
            "acme_device/__init__.py": f"def detect():\n    {answer}\n",
            "acme_device/platform.py": (
                "from graftlm.platforms.cpu import CpuPlatform\n\nclass Acme(CpuPlatform):\n"
                "    device_name = 'Acme'\n"
            ),
        },
    )


def test_enabling_an_endpoint_plugin_changes_nothing_else(site, example_wheels):
    """With it and without it every other plugin has the same state, and only its own row differs."""
    site.install(*example_wheels.values())
    before, after = listed(site), listed(site, "--enable-plugin", "echo")
    changed = {
        name
        for name in before
        if (before[name]["state"], before[name]["reason"]) != (after[name]["state"], after[name]["reason"])
    }

    assert before.keys() == after.keys()
    assert changed == {"endpoint_plugins=echo"}
    assert before["endpoint_plugins=echo"]["state"] == "disabled"
    assert "--enable-plugin echo" in before["endpoint_plugins=echo"]["reason"]


def test_a_list_that_leaves_out_the_answering_platform_stops_the_start(site, example_wheels, tiny_llama):
    """`--plugins x` never moves a server to another device; `--platform cpu` says it on purpose."""
    site.install(example_wheels["json_stats"])
    write_detector(site, answer="return 'acme_device.platform:Acme'")
    message = refusal(site, str(tiny_llama), "--plugins", "json_lines")

    assert "--plugins leaves out platform plugin 'acme' of acme-device 1.0, whose device is there" in message
    assert listed(site, "--plugins", "json_lines", "--platform", "cpu")["platform_plugins=cpu"]["state"] == "active"


@pytest.mark.parametrize("answer", ["raise OSError('no driver')", "return 'acme_device.missing:Acme'"])
def test_a_broken_platform_never_ends_on_another_device(site, tiny_llama, answer):
    """Whether its detector raises or its class cannot be imported: an error with the cure, and no server."""
    write_detector(site, answer=answer)
    message = refusal(site, str(tiny_llama))

    assert "platform plugin 'acme' of acme-device 1.0 failed at" in message
    assert "--platform cpu" in message


def test_two_distributions_that_claim_one_model_are_both_named(site, tiny_llama):
    """Before anything of either is imported."""
    for name in ("one", "two"):
        site.write(
            f"model-{name}",
            entry_points={"models": {"TwiceForCausalLM": f"model_{name}:Model"}},
            files={f"model_{name}.py": "raise SystemExit('imported')\n"},
        )
    message = refusal(site, str(tiny_llama))

    assert "models 'TwiceForCausalLM' is claimed by model-one 1.0" in message and "model-two 1.0" in message
    assert "--disable-plugin models=model-two:TwiceForCausalLM" in message


def test_two_replacements_of_one_class_are_both_named(site, tiny_llama):
    """As entry points they are refused at once; one registered against one published, where the layer is built."""
    source = """
        from graftlm.layers import RMSNorm

        class Mine(RMSNorm):
            pass

        def register():
            RMSNorm.register_oot(Mine)
    """
    for name, points in {
        "first": {"custom_ops": {"graftlm.layers.norm.RMSNorm": "first_norm:Mine"}},
        "second": {"custom_ops": {"graftlm.layers.norm.RMSNorm": "second_norm:Mine"}},
        "third": {"general_plugins": {"third": "third_norm:register"}},
    }.items():
        site.write(f"{name}-norm", entry_points=points, files={f"{name}_norm.py": source})
    published = refusal(site, str(tiny_llama))
    registered = refusal(site, str(tiny_llama), "--disable-plugin", "second-norm:graftlm.layers.norm.RMSNorm")

    assert "first-norm 1.0 (first_norm:Mine) and by second-norm 1.0 (second_norm:Mine)" in published
    assert "is already registered by third-norm" in registered and "first-norm" in registered


def test_a_general_plugin_cannot_change_the_platform(site, tiny_llama):
    """It gets an error that says where platforms come from; the decided platform stays."""
    site.write(
        "usurper",
        entry_points={"general_plugins": {"usurper": "usurper:take"}},
        files={
            "usurper.py": """
                def take():
                    import graftlm.platforms
                    from graftlm.contracts.platform import Platform

                    graftlm.platforms.current_platform = Platform()
            """
        },
    )
    rows = listed(site)
    message = refusal(site, str(tiny_llama), "--enable-plugin", "usurper")

    assert rows["platform_plugins=cpu"]["state"] == "active"
    assert rows["general_plugins=usurper"]["state"] == "failed"
    assert "the platform cannot be changed" in rows["general_plugins=usurper"]["reason"]
    assert "'usurper' of usurper 1.0" in message and "graftlm.platform_plugins" in message


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_model_that_only_the_parent_registers_stops_the_start_with_the_difference(site, tiny_llama, start_method):
    """What one process registers and another does not is printed, never found out by the first request."""
    site.write(
        "half-model",
        entry_points={"general_plugins": {"half": "half_model:register"}},
        files={
            "half_model.py": """
                def register():
                    from graftlm.models import ModelRegistry
                    from graftlm.plugins import Role, current_host

                    if current_host().role is Role.FRONTEND:
                        ModelRegistry.register_model("HalfForCausalLM", "graftlm.models.llama:LlamaForCausalLM")
            """
        },
    )
    message = refusal(
        site, str(tiny_llama), "--hf-overrides", '{"architectures": ["HalfForCausalLM"]}',
        "--start-method", start_method, "--tensor-parallel-size", "2",
    )  # fmt: skip

    assert "does not have the plugins that the front end decided on" in message
    assert "half-model:half: registers models HalfForCausalLM -> graftlm.models.llama:LlamaForCausalLM" in message
    assert "in front end only" in message


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("json_lines.pth=x", "has no setting 'pth'; did you mean 'path'?"),
        ("json_lines.steps=maybe", "'maybe' is not of type bool"),
        (
            "jason_lines.path=x",
            "no enabled plugin or distribution is called 'jason_lines'; did you mean 'json_lines'?",
        ),
        ("json_lines.path", "write it as NAME.KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_imported(site, example_wheels, setting, says):
    """The flag, the value and the cure in one line."""
    site.install(example_wheels["json_stats"])
    (site.folder / "graftlm_json_stats" / "__init__.py").write_text("raise SystemExit('imported')\n")
    message = refusal(site, "no-model", "--plugin-config", setting)

    assert message.startswith(f"--plugin-config {setting}: ")
    assert says in message


def test_an_unknown_op_provider_is_refused_with_the_nearest(site, example_wheels, tiny_llama):
    """As every other name that a worker would need."""
    site.install(example_wheels["handmade_ops"])
    message = refusal(site, str(tiny_llama), "--op-providers", "handmad")

    assert "--op-providers" in message and "did you mean handmade?" in message


def test_a_loader_that_raises_is_named(site, tiny_llama: Path):
    """Whatever point a plugin has, an exception that leaves its code says whose it is."""
    site.write(
        "torn",
        entry_points={"model_loaders": {"torn": "torn_loader:Torn"}},
        files={
            "torn_loader.py": """
                from graftlm.contracts.checkpoint import ModelLoader

                class Torn(ModelLoader):
                    format = "torn"

                    def claims(self, path):
                        return False

                    def read_facts(self, path):
                        raise ValueError("a torn page")

                    def iterate_weights(self, config):
                        yield from ()
            """
        },
    )
    message = refusal(site, str(tiny_llama), "--load-format", "torn")

    assert "a torn page" in message and "raised by plugin 'torn' (distribution torn 1.0)" in message
