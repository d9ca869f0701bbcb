"""The life of a plugin, stop by stop, on a real server with two workers and two installed plugin packages.

Each test is one stop of `graftlm serve` as docs/architecture.md lists them, for both ways to start a process.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from plugin_packages import Site
from tour_server import CORE, FRONT_END, TourServer

PLATFORM, MODEL, WITNESS = "graftlm-dummy-platform", "graftlm-dummy-model", "tour-witness"
FRONT_END_HOOKS = {
    "pre_register_and_update", "verify_model_arch", "apply_config_platform_defaults", "check_and_update_config",
}  # fmt: skip
WORKER_HOOKS = {
    "register_triton_kernel_overrides", "set_device", "get_device_communicator_cls", "get_attn_backend_cls",
    "update_block_size_for_backend", "get_available_memory",
}  # fmt: skip


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def tour(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    wheels: dict[str, Path],
    tiny_opt: Path,
) -> Iterator[TourServer]:
    """The server of the tour: a tiny OPT as MyOPTForCausalLM, on DummyDevice, with two workers."""
    folder = tmp_path_factory.mktemp("tour")
    server = TourServer(
        Site(folder / "site").install(*wheels.values()), tiny_opt,
        "--hf-overrides", '{"architectures": ["MyOPTForCausalLM"]}',
        "--tensor-parallel-size", "2",
        *(["--start-method", request.param] if request.param != "spawn" else []),
        "--enable-plugin", "endpoint_plugins=witness",
        "--log-level", "plugin.dummy_platform_plugin=debug",
        records=folder / "records",
    )  # fmt: skip
    server.start_method = request.param  # type: ignore[attr-defined]
    yield server
    server.stop()


def test_it_answers_with_the_model_of_the_plugin(tour):
    """A completion comes from MyOPTForCausalLM, which answers token 0 to everything."""
    assert tour.complete([5, 6, 7]) == [0] * 8


def test_stop_01_installing_runs_nothing(tour):
    """`pip install` wrote entry points, and nothing of a plugin ran."""
    site = Path(tour.server.env["PYTHONPATH"].split(":")[0])
    found = {d.name: d for d in importlib.metadata.distributions(path=[str(site)])}

    assert {(e.group, e.name) for e in found[PLATFORM].entry_points} == {
        ("graftlm.platform_plugins", "dummy_platform_plugin"), ("graftlm.general_plugins", "dummy_custom_ops"),
        ("graftlm.workers", "dummy"), ("graftlm.communicators", "dummy"),
    }  # fmt: skip
    assert {(e.group, e.name) for e in found[MODEL].entry_points} == {
        ("graftlm.general_plugins", "register_dummy_model"),
        ("graftlm.models", "MyPublishedLlamaForCausalLM"),
    }
    assert tour.records_before == []


def test_stop_02_children_are_spawned_unless_the_user_wants_otherwise(tour):
    """The start method is spawn, a fresh interpreter for each child, unless the user set another."""
    assert len({tour.pids[name] for name in tour.children}) == 3
    for name in tour.children:
        spawned = "child" if name == CORE else "computing_child"
        module = {"spawn": spawned, "forkserver": "fork_server"}[tour.start_method]
        assert f"graftlm.processes.{module}" in psutil.Process(tour.pids[name]).cmdline(), name
    if tour.start_method == "spawn":
        assert psutil.Process(tour.pids[CORE]).ppid() == tour.pids[FRONT_END]
        assert {psutil.Process(tour.pids[name]).ppid() for name in tour.workers} == {tour.pids[CORE]}


def test_stop_03_each_detector_is_asked_once_per_server(tour):
    """Every detector is called once, in the front end only; the out-of-tree platform beats the built-in CPU."""
    asked = tour.events("detector_called")

    assert sorted(e["facts"]["name"] for e in asked) == [
        "cpu", "cuda", "dummy_platform_plugin", "rocm", "tpu", "witness_device", "xpu",
    ]  # fmt: skip
    assert {e["process"] for e in asked} == {FRONT_END}
    assert [e["process"] for e in tour.events("discovered")] == [FRONT_END], "no child discovers again"
    assert [r["pid"] for r in tour.records("detector called")] == [tour.pids[FRONT_END]]
    assert len(tour.log("plugin.dummy_platform_plugin: detector called")) == 1
    (activated,) = tour.events("platform_activated")
    assert activated["process"] == FRONT_END
    assert activated["facts"]["class_path"] == "graftlm_dummy_platform.platform:DummyPlatform"
    (line,) = tour.log("Platform plugin dummy_platform_plugin is activated")
    assert line.startswith("INFO") and f"[{FRONT_END} {tour.pids[FRONT_END]}]" in line
    assert tour.plan["platform"]["distribution"] == PLATFORM
    row = tour.plugin("dummy_platform_plugin")
    assert (row["state"], row["reason"]) == ("active", "its detector answered")
    assert row["processes"] == {FRONT_END: "active", CORE: "idle", "worker 0": "active", "worker 1": "active"}
    assert tour.plugin("cpu", "platform_plugins")["reason"].endswith("; dummy_platform_plugin was taken")


def test_stop_04_general_plugins_run_once_per_process_of_their_roles(tour):
    """Each general plugin runs once in each process of its roles; registrations bear the owner's name."""
    ran = sorted((e["plugin"], e["process"]) for e in tour.events("general_plugin_ran"))
    everywhere, workers = [FRONT_END, *tour.children], tour.workers

    assert ran == sorted(
        [(f"{MODEL}:register_dummy_model", p) for p in everywhere]
        + [(f"{WITNESS}:witness", p) for p in everywhere]
        + [(f"{PLATFORM}:dummy_custom_ops", p) for p in workers]
        + [(f"{WITNESS}:witness_of_workers", p) for p in workers]
    )
    assert sorted(r["process"] for r in tour.records("general plugin ran")) == sorted(everywhere)
    assert sorted(r["process"] for r in tour.records("worker plugin ran")) == workers
    for process in everywhere:
        registered = tour.events("registered", process, registry="models", owner=MODEL)
        assert [e["facts"]["key"] for e in registered] == ["MyOPTForCausalLM", "MyLlamaForCausalLM"]
    swaps = tour.events("registered", registry="custom_ops", owner=PLATFORM)
    assert sorted(e["process"] for e in swaps) == workers


def test_stop_05_pre_register_and_update_runs_once(tour):
    """`pre_register_and_update` runs once per server, with the parser, after the general plugins."""
    (call,) = tour.events("hook_called", hook="pre_register_and_update")

    assert call["process"] == FRONT_END
    assert call["plugin"] == f"{PLATFORM}:dummy_platform_plugin"
    assert len(tour.log("pre_register_and_update called parser=True")) == 1
    assert len(tour.log("pre_register_and_update called")) == 1
    ledger = tour.ledger(FRONT_END)
    last_general = max(i for i, event in enumerate(ledger) if event == "general_plugin_ran")
    assert ledger.index("platform_activated") < ledger.index("general_plugin_ran")
    assert last_general < ledger.index("pre_register_and_update") < ledger.index("architecture_resolved")


def test_stop_06_the_registry_answers_for_an_eager_class_without_a_process(tour):
    """The architecture is resolved once, from the class that the plugin registered, without a helper process."""
    (resolved,) = tour.events("architecture_resolved")

    assert resolved["process"] == FRONT_END
    assert resolved["facts"]["architecture"] == "MyOPTForCausalLM"
    (line,) = tour.log("Resolved architecture: MyOPTForCausalLM")
    assert line.startswith("INFO")
    assert not tour.log("architecture inspected")


def test_stop_07_the_config_pipeline_ends_with_the_platforms_last_word(tour):
    """Both config hooks run once; 'none' is the platform's default and 'all' its last word, each with its owner."""
    stages = [(e["facts"]["owner"], e["facts"]["changes"]) for e in tour.events("config_stage")]
    owners = [owner for owner, _ in stages]
    platform = "platform dummy_platform_plugin"

    assert {e["process"] for e in tour.events("config_stage")} == {FRONT_END}
    assert owners[0] == "user" and owners.count(platform) == 2
    assert stages[0][1]["parallel.tensor_parallel_size"] == 2
    defaults, last_word = [changes for owner, changes in stages if owner == platform]
    assert defaults == {"compilation.custom_ops": ["none"]}
    assert last_word == {
        "compilation.custom_ops": ["all"],
        "parallel.worker_cls": "graftlm_dummy_platform.worker:DummyWorker",
    }
    engine = {path: value for owner, changes in stages if owner == "engine" for path, value in changes.items()}
    assert engine["parallel.distributed_executor_backend"] == "mp"
    assert "compilation.custom_ops" not in engine
    assert tour.hooks(FRONT_END) == dict.fromkeys(FRONT_END_HOOKS, 1)
    (line,) = tour.log("Initializing graftlm (v")
    assert f"compilation.custom_ops=('all',) ({platform})" in line
    assert "parallel.tensor_parallel_size=2 (user)" in line
    for hook in ("apply_config_platform_defaults", "check_and_update_config"):
        (called,) = tour.log(f"{hook} called")  # the platform's own word, beside the ledger's count
        assert f"[{FRONT_END} {tour.pids[FRONT_END]}]" in called


def test_stop_08_stat_loggers_come_before_the_engine_core(tour):
    """`AsyncLLM` loads the stat loggers, in the front end only, before the plan goes to the engine core."""
    (loaded,) = tour.events("stat_logger_loaded")
    (sent,) = tour.events("plan_sent", FRONT_END)
    (built,) = tour.records("stat logger built")
    tour.complete([8, 9], max_tokens=3)

    assert (loaded["process"], loaded["plugin"]) == (FRONT_END, f"{WITNESS}:witness_stats")
    assert sent["facts"]["process"] == CORE
    assert loaded["at"] < sent["at"]
    assert (built["pid"], built["architecture"]) == (tour.pids[FRONT_END], "MyOPTForCausalLM")
    assert len(tour.wait_for_records("request finished", 1, tokens=3)) == 1


def test_stop_09_the_engine_core_obeys_the_plan(tour):
    """The engine core applies the plan before it can decode the config, and neither discovers nor detects again."""
    ledger = tour.ledger(CORE)
    (witnessed,) = [r for r in tour.records("general plugin ran") if r["process"] == CORE]

    assert ledger[0] == "plan_applied" and ledger.count("plan_applied") == 1
    assert not {"discovered", "selected", "detector_called", "platform_activated"} & set(ledger)
    assert witnessed["decoders"] == []
    assert max(i for i, e in enumerate(ledger) if e == "general_plugin_ran") < ledger.index("plan_sent")
    assert tour.hooks(CORE) == {}


def test_stop_10_each_worker_gets_its_plan_and_its_threads(tour):
    """The executor starts one process per rank, and hands it the plan, then the config, and its threads."""
    sent = tour.events("plan_sent", CORE)
    witnessed = {r["process"]: r for r in tour.records("general plugin ran")}

    assert tour.workers == ["worker 0", "worker 1"]
    assert [e["facts"]["process"] for e in sent] == tour.workers
    for worker, message in zip(tour.workers, sent, strict=True):
        (applied,) = tour.events("plan_applied", worker)
        assert tour.ledger(worker)[0] == "plan_applied"
        assert applied["facts"]["fingerprint"] == tour.plan["fingerprint"]
        assert message["facts"]["process"] == worker
        assert witnessed[worker]["decoders"] == []
        assert witnessed[worker]["role"] == "worker"
        assert witnessed[worker]["threads"] == witnessed[tour.workers[0]]["threads"] is not None


def test_stop_11_kernels_are_replaced_before_one_is_launched(tour):
    """`register_triton_kernel_overrides` replaces a named function in each worker, and the replacement runs."""
    tour.complete([4, 5], max_tokens=3)
    for worker in tour.workers:
        ledger = tour.ledger(worker)
        (named,) = tour.events("registered", worker, registry="kernel_functions")
        assert (named["facts"]["key"], named["facts"]["owner"]) == ("paged_attention.decode", PLATFORM)
        (replaced,) = tour.events("kernel_replaced", worker)
        assert replaced["facts"]["function"] == "graftlm_dummy_platform.kernels:dummy_decode"
        assert replaced["count"] == 2, "each of the two layers binds it once"
        assert ledger.index("register_triton_kernel_overrides") < ledger.index("kernel_replaced")
        (line,) = tour.log(
            f"[{worker} {tour.pids[worker]}] plugin.dummy_platform_plugin: decode kernel of the dummy"
        )
        assert line.startswith("INFO")
        assert ledger.count("register_triton_kernel_overrides") == 1
        last_general = max(i for i, event in enumerate(ledger) if event == "general_plugin_ran")
        assert (
            last_general < ledger.index("register_triton_kernel_overrides") < ledger.index("worker_class_resolved")
        )
    assert len(tour.log("register_triton_kernel_overrides called")) == 2


def test_stop_12_the_worker_takes_its_device_and_joins_its_group(tour):
    """Each worker resolves the worker class once and, in a group of two, asks once for the communicator."""
    for rank, worker in enumerate(tour.workers):
        (resolved,) = tour.events("worker_class_resolved", worker)
        (built,) = tour.events("communicator_built", worker)
        assert resolved["facts"]["worker_cls"] == "graftlm_dummy_platform.worker:DummyWorker"
        assert built["facts"] == {
            "group": "tp", "size": 2, "cls": "dummy",
        }  # fmt: skip
        for point in ("workers", "communicators"):
            assert tour.plugin("dummy", point)["processes"][worker] == "active"
        ledger = tour.ledger(worker)
        steps = ["worker_class_resolved", "set_device", "get_device_communicator_cls", "communicator_built"]
        assert sorted(steps, key=ledger.index) == steps
        assert (
            len(tour.log(f"[{worker} {tour.pids[worker]}] plugin.dummy_platform_plugin: device taken rank={rank}"))
            == 1
        )
        assert tour.hooks(worker) == dict.fromkeys(WORKER_HOOKS, 1)
    assert len(tour.log("get_device_communicator_cls called")) == 2


def test_stop_13_attention_asks_once_per_distinct_question(tour):
    """Two attention layers ask the same, so each worker asks the platform once, and gets its backend."""
    for worker in tour.workers:
        (asked,) = tour.events("attention_asked", worker)
        assert asked["facts"]["answer"] == "graftlm_dummy_platform.attention:DummyAttentionBackend"
        assert asked["facts"]["question"]["num_heads"] == 2, "a rank has half of the four heads"
    assert len(tour.log("get_attn_backend_cls called")) == 2


def test_stop_14_only_the_replaced_class_is_swapped(tour):
    """The replacement of the rotary embedding is known to each worker; OPT builds none, so nothing is swapped."""
    for worker in tour.workers:
        (registered,) = tour.events("registered", worker, registry="custom_ops", owner=PLATFORM)
        assert registered["facts"]["key"] == "graftlm.layers.rotary.RotaryEmbedding"
        assert registered["facts"]["value"] == "graftlm_dummy_platform.rotary:DummyRotaryEmbedding"
        assert not tour.events("op_swapped", worker)


def test_stop_15_each_op_chooses_its_forward_once_and_says_why(tour):
    """The platform left the ops on: none is switched off, and OPT's norms have no `forward_oot` of their own."""
    for worker in tour.workers:
        chosen = {e["facts"]["op"]: e for e in tour.events("op_dispatched", worker)}
        assert chosen["layer_norm"]["facts"]["count"] == 5, "two layers of two, and the last one"
        assert chosen["layer_norm"]["facts"]["method"] == "forward_native"
        assert "no other implementation for this platform" in chosen["layer_norm"]["facts"]["reason"]
        assert not any("switched off" in e["facts"]["reason"] for e in chosen.values())
        assert "rotary_embedding" not in chosen


def test_stop_16_ready_with_one_block_size_a_frozen_environment_and_one_plan_everywhere(tour):
    """Workers agree on the backend's block size, environments freeze, and all have the same fingerprint."""
    for worker in tour.workers:
        (decided,) = tour.events("block_size_decided", worker)
        assert decided["facts"] == {"block_size": 32, "asked_by": "default", "backends": ["DUMMY"]}
        assert tour.ledger(worker)[-1] == "ready"
    for child in tour.children:
        assert len(tour.events("environment_frozen", child)) == 1
        assert tour.ledger(child).index("environment_frozen") < tour.ledger(child).index("ready")
    assert [r["sees_change"] for r in tour.wait_for_records("ready", 4) if r["environment_frozen"]] == [False] * 3
    assert "block_size=32" in tour.log("engine ready")[0]

    processes = tour.plan["processes"]
    assert set(processes) == {FRONT_END, *tour.children}
    assert {p["fingerprint"] for p in processes.values()} == {tour.plan["fingerprint"]}
    assert {name: p["roles"] for name, p in processes.items()} == {
        FRONT_END: ["frontend"], CORE: ["engine"], "worker 0": ["worker"], "worker 1": ["worker"],
    }  # fmt: skip

    (attached,) = tour.events("endpoint_attached")
    assert attached["process"] == FRONT_END
    assert tour.get("/plugins/witness/pid") == tour.pids[FRONT_END]
    assert [r["ready"] for r in tour.records("endpoint initialized")] == [True]
    assert tour.ledger(FRONT_END)[-1] == "ready"
    assert tour.server.healthy()
