"""The role matrix on live servers: process × package → imported or not, with plugins that need no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import Site
from tour_server import CORE, FRONT_END, TourServer

#: Package -> the kinds of processes that import it. A worker in the engine core makes it a worker too.
MATRIX = {
    "torch": {"worker"},
    "numpy": {"worker"},
    "safetensors": {"worker"},
    "zmq": {"front end", "engine core"},
    "fastapi": {"front end"},
    "uvicorn": {"front end"},
    "pydantic": {"front end"},
    "prometheus_client": {"front end"},
    "tokenizers": {"front end"},
    "jinja2": {"front end"},
    "tour_witness": {"front end", "engine core", "worker"},
    "worker_only": {"worker"},
    "broken_everywhere": {"front end", "engine core", "worker"},
    "idle_model": set(),
    "transformers": set(),
    "gguf": set(),
    "triton": set(),
}
#: A shared library of the package, seen in /proc/PID/maps: a witness that does not depend on Python.
LIBRARIES = {"torch": "libtorch_cpu.so", "zmq": "/zmq/", "tokenizers": "/tokenizers/", "pydantic": "pydantic_core"}


@pytest.fixture(scope="module", params=[1, 2], ids=["TP=1", "TP=2"])
def server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    wheels: dict[str, Path],
    tiny_opt: Path,
) -> Iterator[TourServer]:
    """A server on the CPU with a witness, a model that nobody asks for, and a plugin that fails."""
    folder = tmp_path_factory.mktemp("matrix")
    site = Site(folder / "site").install(wheels["tour_witness"])
    site.write(
        "idle-model",
        entry_points={"models": {"IdleForCausalLM": "idle_model:IdleForCausalLM"}},
        files={"idle_model.py": "raise RuntimeError('imported without need')\n"},
    )
    site.write(
        "worker-only",
        entry_points={"general_plugins": {"worker_only": "worker_only:register"}},
        files={
            "worker_only/__init__.py": "def register():\n    pass\n",
            "worker_only/graftlm_plugin.toml": '[plugin.worker_only]\nroles = ["worker"]\n',
        },
    )
    site.write(
        "broken-everywhere",
        entry_points={"general_plugins": {"broken": "broken_everywhere:register"}},
        files={
            "broken_everywhere.py": """
                def register():
                    from graftlm.models import ModelRegistry

                    ModelRegistry.register_model("FirstForCausalLM", "idle_model:IdleForCausalLM")
                    ModelRegistry.register_model("SecondForCausalLM", "idle_model:IdleForCausalLM")
                    raise RuntimeError("half-way")
            """
        },
    )
    started = TourServer(site, tiny_opt, f"--tensor-parallel-size={request.param}", records=folder / "records")
    assert len(started.complete([5, 6, 7])) == 8
    yield started
    started.stop()


def kinds(server: TourServer, process: str) -> set[str]:
    """Return what a process is, in the words of the matrix."""
    names = {"frontend": "front end", "engine": "engine core", "worker": "worker"}
    return {names[role] for role in server.plan["processes"][process]["roles"]}


@pytest.mark.parametrize("package", MATRIX)
def test_each_process_imports_only_its_own_packages(server, package):
    """A package is imported in exactly the processes that need it."""
    ready = server.wait_for_records("ready", len(server.pids))
    importers = {r["process"] for r in ready if package in r["packages"]}

    assert {r["process"] for r in ready} == {FRONT_END, *server.children}
    assert importers == {process for process in server.pids if kinds(server, process) & MATRIX[package]}


@pytest.mark.parametrize("package", LIBRARIES)
def test_each_process_maps_only_its_own_libraries(server, package):
    """The same, as the operating system sees it, after a request was served."""
    for process, pid in server.pids.items():
        mapped = LIBRARIES[package] in Path(f"/proc/{pid}/maps").read_text()
        assert mapped == bool(kinds(server, process) & MATRIX[package]), process


def test_a_plugin_that_failed_half_way_left_nothing_in_any_process(server):
    """The server runs on; the plugin is listed as failed everywhere, without a registration."""
    row = server.plugin("broken")

    assert (row["state"], row["registrations"]) == ("failed", [])
    assert row["processes"] == dict.fromkeys(server.pids, "failed")
    assert "half-way" in row["reason"]
    assert not server.events("registered", owner="broken-everywhere")
    for record in server.wait_for_records("ready", len(server.pids)):
        assert "OPTForCausalLM" in record["architectures"]
        assert not {"FirstForCausalLM", "SecondForCausalLM"} & set(record["architectures"])
    assert len(server.log("plugin_failed")) == len(server.pids)


def test_a_model_that_nobody_asks_for_is_never_imported(server):
    """An installed model plugin costs nothing: it is listed as idle and its module is imported nowhere."""
    row = server.plugin("IdleForCausalLM")

    assert (row["state"], row["ms"]) == ("idle", 0.0)
    assert not server.log("imported without need")


def test_one_rank_needs_no_communicator(server):
    """Only in a group of more than one rank is the platform asked for its communicator."""
    asked = [e["process"] for e in server.events("hook_called", hook="get_device_communicator_cls")]

    assert sorted(asked) == server.workers
    assert server.workers == ([] if server.children == [CORE] else ["worker 0", "worker 1"])
