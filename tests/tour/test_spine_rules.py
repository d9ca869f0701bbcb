"""The rules of the plugin system, each through the real command line; no rule here needs a running engine."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import Site, run_graftlm


def listed(site: Site, *flags: str) -> dict[str, Any]:
    """Return what `graftlm plugins --json` says."""
    done = run_graftlm("plugins", "--json", *flags, env=site.environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def refusal(site: Site, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Return the last words of a `graftlm serve` that must not start."""
    done = run_graftlm("serve", *arguments, "--port=0", env={**site.environment, **(env or {})})
    assert done.returncode == 1, done.stderr
    _, begin, last_words = done.stderr.rpartition("graftlm: error: ")
    assert begin, done.stderr
    return last_words


def write_platform(
    site: Site, name: str, *, body: str = "", distribution: str | None = None, general_plugin: str | None = None
) -> None:
    """Install a platform that always answers; `body` is what it overrides. It may bring a general plugin too."""
    package = f"{name}_platform"
    site.write(
        distribution or f"{name}-platform",
        entry_points={
            "platform_plugins": {name: f"{package}:detect"},
            "general_plugins": {general_plugin: f"{package}:detect"} if general_plugin else {},
        },
        files={
            f"{package}/__init__.py": f'def detect():\n    return "{package}.platform:ThePlatform"\n',
            f"{package}/platform.py": (
                "from graftlm.contracts.platform import Platform\n"
                "class ThePlatform(Platform):\n"
                f'    device_name = "{name.title()}Device"\n{body}'
            ),
        },
    )


def test_out_of_tree_beats_built_in(site, wheels):
    """A built-in detector that sees its device wins over the CPU, and loses against an installed platform."""
    # A platform of graftlm's own kernel distribution is built in.
    write_platform(site, "fast", distribution="graftlm-kernels")
    alone = listed(site)["plan"]["platform"]
    site.install(wheels["dummy_platform"])
    beside = listed(site)

    assert (alone["name"], alone["built_in"]) == ("fast", True)
    assert beside["plan"]["platform"]["name"] == "dummy_platform_plugin"
    (fast,) = [p for p in beside["plugins"] if p["name"] == "fast"]
    assert fast["state"] == "idle"


def test_two_out_of_tree_platforms_that_answer_are_an_error(site, wheels):
    """The error names both, and how to choose."""
    site.install(wheels["dummy_platform"])
    write_platform(site, "other")
    message = refusal(site, "no-model")

    assert "dummy_platform_plugin, other" in message
    assert "--platform dummy_platform_plugin or --platform other" in message


def test_the_platform_flag_chooses(site, wheels):
    """`--platform cpu` serves on the CPU although an installed platform would answer."""
    site.install(wheels["dummy_platform"])
    described = listed(site, "--platform", "cpu")

    assert described["plan"]["platform"]["name"] == "cpu"
    (dummy,) = [p for p in described["plugins"] if p["name"] == "dummy_platform_plugin"]
    assert (dummy["state"], dummy["ms"]) == ("idle", 0.0)


def test_an_exact_list_may_not_leave_out_the_device_in_silence(site, wheels):
    """`--plugins` without the platform whose device is there stops the start, unless `--platform` decides."""
    site.install(wheels["dummy_platform"], wheels["dummy_model"])
    message = refusal(site, "no-model", "--plugins", "register_dummy_model")
    decided = listed(site, "--plugins", "register_dummy_model", "--platform", "cpu")

    assert "dummy_platform_plugin" in message and "--platform cpu" in message
    assert decided["plan"]["platform"]["name"] == "cpu"
    states = {p["name"]: p["state"] for p in decided["plugins"] if p["distribution"].startswith("graftlm-dummy")}
    assert [name for name, state in states.items() if state != "disabled"] == ["register_dummy_model"]
    assert states["register_dummy_model"] == "active" and "dummy_platform_plugin" in states


def test_safe_mode_leaves_every_plugin_alone(site, wheels, tmp_path):
    """`--no-plugins` serves on what the engine brings; no code of a plugin runs."""
    site.install(wheels["dummy_platform"], wheels["tour_witness"])
    done = run_graftlm("plugins", "--json", "--no-plugins", env={**site.environment, "TOUR_RECORDS": str(tmp_path)})
    described = json.loads(done.stdout)

    assert described["plan"]["platform"]["name"] == "cpu"
    others = [p for p in described["plugins"] if p["distribution"] not in ("graftlm", "graftlm-kernels")]
    assert {p["state"] for p in others} == {"disabled"}
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_platform_that_fails_never_leads_to_another_device_in_silence(site):
    """A detector that raises stops the start; `--allow-platform-fallback` takes the next best and lists it."""
    site.write(
        "sick-platform",
        entry_points={"platform_plugins": {"sick": "sick_platform:detect"}},
        files={"sick_platform.py": "def detect():\n    raise OSError('driver too old')\n"},
    )
    message = refusal(site, "no-model")
    fallen_back = listed(site, "--allow-platform-fallback")

    for part in ("'sick' of sick-platform 1.0", "driver too old", "--platform cpu or --allow-platform-fallback"):
        assert part in message
    assert fallen_back["plan"]["platform"]["name"] == "cpu"
    (row,) = [p for p in fallen_back["plugins"] if p["name"] == "sick"]
    assert row["state"] == "failed" and "driver too old" in row["reason"]


def test_a_plugin_for_another_api_is_refused_before_it_is_imported(site):
    """The range in its manifest decides, without an import; the reason names range, version and cure."""
    site.write(
        "future-ops",
        entry_points={"general_plugins": {"future": "future_ops:register"}},
        files={
            "future_ops/__init__.py": "raise SystemExit('imported')\n",
            "future_ops/graftlm_plugin.toml": 'api = ">=2.0"\n',
        },
    )
    (row,) = [p for p in listed(site)["plugins"] if p["name"] == "future"]

    assert row["state"] == "refused"
    assert ">=2.0" in row["reason"] and "this graftlm has 1.0" in row["reason"] and "install" in row["reason"]


def test_a_process_that_registers_something_else_stops_the_start(site, tiny_opt):
    """A general plugin must register the same everywhere; the difference is printed entry by entry."""
    site.write(
        "two-faced",
        entry_points={"general_plugins": {"two_faced": "two_faced:register"}},
        files={
            "two_faced.py": """
                def register():
                    from graftlm.models import ModelRegistry
                    from graftlm.plugins import current_host

                    name = "FrontForCausalLM" if current_host().process == "front end" else "BackForCausalLM"
                    ModelRegistry.register_model(name, "graftlm.models.opt:OPTForCausalLM")
            """
        },
    )
    done = run_graftlm("serve", str(tiny_opt), "--port=0", env=site.environment)

    assert done.returncode == 1, done.stderr
    assert "'engine core' does not have the plugins that the front end decided on" in done.stderr
    for name, place in (("FrontForCausalLM", "front end"), ("BackForCausalLM", "engine core")):
        line = (
            f"plugin two-faced:two_faced: registers models {name} -> graftlm.models.opt:OPTForCausalLM in {place}"
        )
        assert f"{line} only" in done.stderr


def test_an_unset_worker_class_is_refused_in_the_front_end(site, tiny_opt):
    """A platform that leaves worker_cls at 'auto' is told so before any process starts."""
    write_platform(site, "lazy")
    message = refusal(site, str(tiny_opt))

    assert "--worker-cls" in message and "'auto'" in message
    assert "LazyDevice" in message and "check_and_update_config" in message


def test_a_worker_class_object_is_refused_in_the_front_end(site, tiny_opt):
    """A class object does not reach another process; the error names the path to write instead."""
    body = """
    @classmethod
    def check_and_update_config(cls, config):
        config.parallel.worker_cls = ThePlatform
"""
    write_platform(site, "eager", body=body)
    message = refusal(site, str(tiny_opt))

    assert "class object" in message
    assert "'eager_platform.platform:ThePlatform'" in message


def test_a_falsy_attention_answer_is_an_error(site, tiny_opt):
    """A platform that names no attention backend stops the start with the name of its device."""
    body = """
    @classmethod
    def check_and_update_config(cls, config):
        config.parallel.worker_cls = "cpu"

    @classmethod
    def get_attn_backend_cls(cls, selected_backend, question):
        return None
"""
    write_platform(site, "mute", body=body)
    message = refusal(site, str(tiny_opt))

    assert "Invalid attention backend for MuteDevice" in message


def test_an_exception_in_a_worker_names_the_plugin(site, tiny_opt):
    """A worker class that raises is blamed on its platform, of all the plugins that the distribution has."""
    body = """
    @classmethod
    def check_and_update_config(cls, config):
        config.parallel.worker_cls = "faulty_platform.worker:FaultyWorker"
"""
    write_platform(site, "faulty", body=body, general_plugin="another")
    (site.folder / "faulty_platform" / "worker.py").write_text(
        "from graftlm.worker import Worker\n"
        "class FaultyWorker(Worker):\n"
        "    def init_device(self):\n"
        "        raise OSError('no such device')\n"
    )
    message = refusal(site, str(tiny_opt), "--distributed-executor-backend", "mp")

    for part in ("no such device", "'faulty' (distribution faulty-platform 1.0)", "FaultyWorker", "'worker 0'"):
        assert part in message


@pytest.fixture
def broken(site: Site) -> Site:
    """A general plugin that registers two architectures and then raises."""
    return site.write(
        "broken-models",
        entry_points={"general_plugins": {"broken": "broken_models:register"}},
        files={
            "broken_models.py": """
                def register():
                    from graftlm.models import ModelRegistry

                    ModelRegistry.register_model("FirstForCausalLM", "graftlm.models.opt:OPTForCausalLM")
                    ModelRegistry.register_model("SecondForCausalLM", "graftlm.models.opt:OPTForCausalLM")
                    raise RuntimeError("the third is missing")
            """
        },
    )


def test_a_general_plugin_that_raises_leaves_nothing_behind(broken, tiny_opt):
    """What it registered before it raised is gone; the error of whoever needs it says which plugin failed."""
    for architecture in ("FirstForCausalLM", "SecondForCausalLM"):
        message = refusal(broken, str(tiny_opt), "--hf-overrides", f'{{"architectures": ["{architecture}"]}}')
        assert f"['{architecture}'] are not supported" in message
        assert "'broken' of broken-models 1.0 failed" in message and "the third is missing" in message
    (row,) = [p for p in listed(broken)["plugins"] if p["name"] == "broken"]
    assert (row["state"], row["registrations"]) == ("failed", [])


def test_a_named_plugin_that_raises_stops_the_start(broken):
    """An operator who asked for a plugin gets it, or its traceback and who to blame."""
    done = run_graftlm("serve", "no-model", "--enable-plugin", "broken", env=broken.environment)
    last = done.stderr.strip().splitlines()[-1]

    assert done.returncode == 1
    assert "Traceback" in done.stderr and "broken_models.py" in done.stderr
    for part in ("'broken' of broken-models 1.0", "front end", "the third is missing", "leave it out of the flag"):
        assert part in last


def test_an_unknown_plugin_name_is_refused_at_once_and_imports_nothing(site, wheels, tmp_path):
    """The nearest name is told before torch is imported, and no code of any plugin has run."""
    site.install(wheels["dummy_platform"], wheels["tour_witness"])
    env = {**site.environment, "TOUR_RECORDS": str(tmp_path), "PYTHONPROFILEIMPORTTIME": "1"}
    done = run_graftlm("serve", "no-model", "--plugins=dumy_platform_plugin", "--port=0", env=env)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}

    assert done.returncode == 1, done.stderr
    assert (
        "no installed plugin is called 'dumy_platform_plugin'; did you mean 'dummy_platform_plugin'" in done.stderr
    )
    assert "graftlm" in imported and "torch" not in imported
    assert list(tmp_path.glob("*.jsonl")) == []


def test_the_engine_publishes_its_own_plugins_beside_those_of_others(site, wheels):
    """Built-ins enter through the same entry points: both are discovered, and listed in the same way."""
    site.install(wheels["dummy_platform"], wheels["dummy_model"])
    rows = {(p["point"], p["name"], p["distribution"]) for p in listed(site)["plugins"]}
    own = {
        (e.group.removeprefix("graftlm."), e.name, "graftlm")
        for e in importlib.metadata.distribution("graftlm").entry_points
        if e.group.startswith("graftlm.")
    }

    assert {("platform_plugins", "cpu", "graftlm"), ("attention_backends", "TORCH_PAGED", "graftlm")} <= own <= rows
    assert {
        ("platform_plugins", "dummy_platform_plugin", "graftlm-dummy-platform"),
        ("general_plugins", "dummy_custom_ops", "graftlm-dummy-platform"),
        ("general_plugins", "register_dummy_model", "graftlm-dummy-model"),
    } <= rows


def test_help_runs_no_plugin(site, wheels, tmp_path: Path):
    """`--help` and `--version` leave every installed plugin alone."""
    site.install(wheels["tour_witness"])
    for words in (["--version"], ["--help"], ["serve", "--help"]):
        done = run_graftlm(*words, env={**site.environment, "TOUR_RECORDS": str(tmp_path)})
        assert done.returncode == 0, done.stderr

    assert list(tmp_path.glob("*.jsonl")) == []
