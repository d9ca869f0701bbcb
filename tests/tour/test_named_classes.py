"""What the example packages publish, used by its name alone: a worker class, a communicator, an architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_packages import Site
from tour_server import FRONT_END, TourServer

ARCHITECTURE = "MyPublishedLlamaForCausalLM"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path):
    """Two CPU workers of the dummy's class, its communicator, and the model's published architecture."""
    folder = tmp_path_factory.mktemp("named")
    site = Site(folder / "site").install(wheels["dummy_platform"], wheels["dummy_model"])
    site.write(
        "links-platform",
        entry_points={"platform_plugins": {"links": "links_platform:detect"}},
        files={
            "links_platform/__init__.py": "def detect():\n    return 'links_platform.platform:Links'\n",
            "links_platform/platform.py": """
                from graftlm.platforms.cpu import CpuPlatform

                class Links(CpuPlatform):
                    device_name = "Links"

                    @classmethod
                    def get_device_communicator_cls(cls):
                        return "dummy"
            """,
        },
    )
    server = TourServer(
        site, tiny_llama, "--platform", "links", "--tensor-parallel-size", "2", "--worker-cls", "dummy",
        "--hf-overrides", f'{{"architectures": ["{ARCHITECTURE}"]}}', "--disable-plugin", "register_dummy_model",
        records=folder / "records",
    )  # fmt: skip
    yield server
    server.stop()


def test_worker_and_communicator_are_taken_by_name(named: TourServer):
    """`--worker-cls dummy` and a platform of somebody else that names the communicator reach the entry points."""
    for worker in named.workers:
        (resolved,) = named.events("worker_class_resolved", worker)
        (built,) = named.events("communicator_built", worker)
        assert (resolved["facts"]["worker_cls"], built["facts"]["cls"]) == ("dummy", "dummy")
        for point in ("workers", "communicators"):
            row = named.plugin("dummy", point)
            assert (row["state"], row["processes"][worker]) == ("active", "active")
    assert len(named.log("device taken rank=")) == 2


def test_the_published_architecture_needs_no_general_plugin(named: TourServer):
    """The front end reads its facts without importing it; the workers build it, and it answers token 1."""
    row = named.plugin(ARCHITECTURE, "models")

    assert named.complete([5, 6, 7], max_tokens=4) == [1] * 4
    assert {worker: row["processes"][worker] for worker in named.workers} == dict.fromkeys(named.workers, "active")
    assert row["processes"].get(FRONT_END) != "active"
    assert named.plugin("register_dummy_model")["state"] == "disabled"
