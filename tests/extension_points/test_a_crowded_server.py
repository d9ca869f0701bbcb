"""One server on two workers among plugins that are idle, broken, slow or of another device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import Site
from point_server import LiveServer, live_server

_RECORDING = """
    import time
    from graftlm.contracts.stats import StatLogger

    class Raises(StatLogger):
        def record(self, step, finished):
            raise ConnectionError("nobody listens")

    class Sleeps(StatLogger):
        def record(self, step, finished):
            time.sleep(600)
"""
_BROKEN = """
    def register():
        from graftlm.models import ModelRegistry

        ModelRegistry.register_model("FirstForCausalLM", "graftlm.models.llama:LlamaForCausalLM")
        ModelRegistry.register_model("SecondForCausalLM", "graftlm.models.llama:LlamaForCausalLM")
        raise RuntimeError("the third is missing")
"""
#: Importing it is the fault: each process that does leaves a file behind.
_IDLE = """
    import os, pathlib

    pathlib.Path(os.environ["IMPORTS"], str(os.getpid())).touch()

    class Model:
        pass
"""


def crowd(site: Site) -> Site:
    """Fifty idle models in one package, a broken general plugin, and a platform whose detector raises."""
    site.write(
        "fifty-models",
        entry_points={"models": {f"Idle{i}ForCausalLM": "fifty_models:Model" for i in range(50)}},
        files={"fifty_models.py": _IDLE},
    )
    site.write(
        "broken-models", entry_points={"general_plugins": {"broken": "broken_models:register"}},
        files={"broken_models.py": _BROKEN},
    )  # fmt: skip
    site.write(
        "lost-device", entry_points={"platform_plugins": {"lost": "lost_device:detect"}},
        files={"lost_device.py": "def detect():\n    raise OSError('no driver')\n"},
    )  # fmt: skip
    return site.write(
        "stat-faults",
        entry_points={"stat_logger_plugins": {"raises": "stat_faults:Raises", "sleeps": "stat_faults:Sleeps"}},
        files={"stat_faults.py": _RECORDING},
    )


@pytest.fixture(scope="module")
def crowded(
    example_wheels: dict[str, Path], tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """The tiny Llama in int8 on two workers, with `--platform cpu` and `-rotary_embedding`."""
    folder = tmp_path_factory.mktemp("crowded")
    (folder / "imports").mkdir()
    site = crowd(Site(folder / "site").install(example_wheels["int8_weights"], example_wheels["handmade_ops"]))
    site.write(
        "own-rotary",
        entry_points={"custom_ops": {"graftlm.layers.rotary.RotaryEmbedding": "own_rotary:OwnRotary"}},
        files={
            "own_rotary.py": """
                from graftlm.layers import RotaryEmbedding

                class OwnRotary(RotaryEmbedding):
                    def forward_cpu(self, positions, query, key):
                        raise AssertionError("switched off")
            """
        },
    )
    with live_server(
        site, str(tiny_llama), "--platform", "cpu", "--quantization", "int8_weight_only",
        "--tensor-parallel-size", "2", "--custom-ops=-rotary_embedding",
        env={"IMPORTS": str(folder / "imports")},
    ) as server:  # fmt: skip
        server.imports = folder / "imports"  # type: ignore[attr-defined]
        yield server


def test_it_serves_on_the_cpu_although_a_platform_is_broken(crowded):
    """`--platform cpu` was said, so the broken detector is not even asked."""
    assert crowded.complete(max_tokens=4)
    assert crowded.plugins()["platform_plugins=cpu"]["state"] == "active"
    assert [e["facts"]["name"] for e in crowded.events("detector_called")] == ["cpu"]


def test_idle_models_are_imported_nowhere(crowded):
    """Fifty architectures in one package cost the metadata of one, in the front end, the core and the workers."""
    rows = [row for name, row in crowded.plugins().items() if name.startswith("models=Idle")]

    assert len(rows) == 50 and {row["state"] for row in rows} == {"idle"}
    assert list(crowded.imports.iterdir()) == []


def test_a_general_plugin_that_raises_leaves_nothing_and_is_told(crowded):
    """The server started without it, says so once per process, and shows it as failed."""
    row = crowded.plugins()["general_plugins=broken"]
    warnings = [
        line for line in crowded.server.output.splitlines() if "plugin_failed" in line and "'broken'" in line
    ]

    assert (row["state"], row["registrations"]) == ("failed", [])
    assert set(row["processes"].values()) == {"failed"} and len(row["processes"]) == 4
    assert "the third is missing" in row["reason"]
    assert len(warnings) == 4 and all(line.startswith("WARNING") for line in warnings)


def test_a_replacement_obeys_the_switch_of_what_it_replaces(crowded):
    """`-rotary_embedding` reaches the class of the plugin: its reference runs, its own forward never."""
    (chosen,) = {
        (e["facts"]["method"], e["facts"]["reason"]) for e in crowded.events("op_dispatched", op="rotary_embedding")
    }

    assert {e["facts"]["replacement"] for e in crowded.events("op_swapped")} >= {"own_rotary.OwnRotary"}
    assert chosen == ("forward_native", "switched off by -rotary_embedding")


def test_the_quantization_method_is_used_by_each_worker(crowded):
    """Chosen by name in the front end, imported where layers are built."""
    processes = crowded.plugins()["quantization_methods=int8_weight_only"]["processes"]

    assert processes["worker 0"] == processes["worker 1"] == "active"
    assert processes["front end"] == "idle"


def test_no_token_waits_for_a_stat_logger(crowded):
    """One raises, one sleeps ten minutes in each record, and who waited for it would get no second token."""
    assert crowded.stream(max_tokens=48) >= 48


def test_a_stat_logger_that_fails_or_sleeps_is_counted_and_shown(crowded):
    """In the log at 1, 10, 100 …; in GET /plugins and /metrics as it stands."""
    crowded.complete(max_tokens=12)
    deadline = time.monotonic() + 60
    while True:  # it has a thread of its own
        rows, metrics = crowded.plugins(), crowded.call("/metrics")[1]
        raises, sleeps = rows["stat_logger_plugins=raises"], rows["stat_logger_plugins=sleeps"]
        if raises["serving"]["errors"] >= 12 or time.monotonic() > deadline:
            break
        time.sleep(0.05)

    assert raises["serving"]["errors"] >= 12 and "ConnectionError: nobody listens" in raises["reason"]
    assert sleeps["serving"]["waiting"] >= 10 and sleeps["serving"]["seconds"] > 0
    assert "stat_logger_failed name=raises hook=record errors=10" in crowded.server.output
    assert 'graftlm:plugin_errors_total{plugin="stat-faults:raises"}' in metrics
    assert 'graftlm:plugin_dropped_records_total{plugin="stat-faults:sleeps"}' in metrics
