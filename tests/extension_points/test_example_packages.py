"""Every example package installed at once: each passes its own tests, and one server uses all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import EXAMPLES, Site
from point_server import PACKAGES, PROMPT, LiveServer, lines_of

KEY = "the-key"

_ROTARY = """
    from graftlm.layers import RotaryEmbedding

    class OwnRotaryEmbedding(RotaryEmbedding):
        def forward_cpu(self, positions, query, key):
            return self.forward_native(positions, query, key)
"""
_ROGUE = """
    from graftlm.contracts.endpoint import EndpointPlugin

    class Rogue(EndpointPlugin):
        def attach_router(self, router):
            router.add_api_route("/../../v1/models", self.shadow)
            router.add_api_route("/broken", self.broken)

        async def shadow(self):
            return {"object": "shadow"}

        async def broken(self):
            raise ValueError("no answer left")
"""


@pytest.fixture(scope="module")
def installed(example_wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All example packages, a replaced rotary embedding, and an endpoint that means no good."""
    site = Site(tmp_path_factory.mktemp("all") / "site").install(*example_wheels.values())
    site.write(
        "own-rotary",
        entry_points={"custom_ops": {"graftlm.layers.RotaryEmbedding": "own_rotary:OwnRotaryEmbedding"}},
        files={"own_rotary.py": _ROTARY},
    )
    return site.write(
        "rogue", entry_points={"endpoint_plugins": {"rogue": "rogue_endpoint:Rogue"}},
        files={"rogue_endpoint.py": _ROGUE},
    )  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_an_example_is_installed_with_all_of_its_files(name: str, installed: Site) -> None:
    """A manifest that a build leaves out would be missed by nobody but the reader."""
    package = EXAMPLES / name / f"graftlm_{name}"
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]

    assert [file for file in files if not (installed.folder / file.relative_to(package.parent)).exists()] == []


@pytest.fixture(scope="module")
def models(installed: Site, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny Llama as an .npz checkpoint called `tiny`."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [sys.executable, "-m", "graftlm_model_files.convert", str(tiny_llama), str(folder / "tiny")],
        env={**os.environ, **installed.environment}, check=True, timeout=240,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(installed: Site, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server that uses every package but the quantization method, which would change the answers."""
    lines = tmp_path_factory.mktemp("lines") / "requests.jsonl"
    live = LiveServer(
        installed, "folder://tiny",
        "--plugin-config", f"folder.folders={models}",
        "--plugin-config", f"json_lines.path={lines}",
        "--plugin-config", "graftlm-echo-endpoint.greeting=hello",
        "--enable-plugin", "echo,rogue",
        "--attention-backend", "GATHER",
        "--op-providers", "handmade", "--verify-ops",
        "--custom-ops", "none,+rotary_embedding,+silu_and_mul,+rms_norm",
        "--api-key", KEY,
        key=KEY,
    )  # fmt: skip
    live.lines = lines  # type: ignore[attr-defined]
    yield live
    live.stop()


def test_each_package_passes_its_own_tests(installed: Site) -> None:
    """As its author would run them, with the package installed and nothing else of ours."""
    folders = [str(EXAMPLES / name / "tests") for name in PACKAGES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider",
         f"--rootdir={EXAMPLES}", "-c", os.devnull, *folders],
        env={**os.environ, **installed.environment}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert all((EXAMPLES / name / "README.md").is_file() for name in PACKAGES)


def test_each_point_took_part(server: LiveServer) -> None:
    """Every plugin that was chosen is active in the process it is for; the one that was not is idle."""
    rows = server.plugins()
    active = {name: row["processes"] for name, row in rows.items() if row["state"] == "active"}

    assert {
        "stat_logger_plugins=json_lines", "endpoint_plugins=echo", "model_sources=folder", "model_loaders=npz",
        "custom_ops=graftlm.layers.activation.SiluAndMul", "custom_ops=graftlm.layers.RotaryEmbedding",
        "op_implementations=rms_norm.handmade", "attention_backends=GATHER",
    } <= set(active)  # fmt: skip
    assert active["attention_backends=GATHER"]["engine core"] == "active"
    assert active["model_loaders=npz"] == {"front end": "active", "engine core": "active"}
    assert active["model_sources=folder"]["front end"] == "active"
    assert rows["quantization_methods=int8_weight_only"]["state"] == "idle"


def test_the_answers_are_those_of_a_plain_engine(server: LiveServer, tiny_llama: Path) -> None:
    """Source, loader, attention and ops of plugins together continue as the engine's own do."""
    from graftlm import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    llm = LLM(model=str(tiny_llama), no_plugins=True)
    (expected,) = llm.generate(PROMPT, params, progress=False)
    llm.close()

    assert server.complete(max_tokens=24) == list(expected.outputs[0].token_ids)


def test_ops_are_replaced_and_keep_their_switches(server: LiveServer) -> None:
    """`none,+name` reaches a replacement by the name of what it replaces; a provider is asked after it."""
    swaps = {(e["facts"]["cls"], e["facts"]["replacement"]) for e in server.events("op_swapped")}
    chosen = {e["facts"]["op"]: e["facts"]["method"] for e in server.events("op_dispatched")}

    assert ("graftlm.layers.activation.SiluAndMul", "graftlm_handmade_ops.swiglu.OneBufferSiluAndMul") in swaps
    assert ("graftlm.layers.rotary.RotaryEmbedding", "own_rotary.OwnRotaryEmbedding") in swaps
    assert chosen["silu_and_mul"] == chosen["rotary_embedding"] == "forward_cpu"
    assert chosen["rms_norm"] == "rms_norm.handmade"
    assert chosen["linear"] == "forward_native"


def test_an_endpoint_needs_the_key_and_reaches_the_engine(server: LiveServer) -> None:
    """Without the key it is as closed as the rest; with it, it has its setting and the engine."""
    status, refused = server.call("/plugins/echo/echo", {"text": "hi"}, key="wrong")
    assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
    assert server.call("/plugins/echo/echo", {"text": "hi"}) == (200, {"echo": "hello: hi"})
    assert server.call("/plugins/echo/continue", {"token_ids": PROMPT}) == (200, {"token_ids": server.complete()})
    assert server.call("/plugins/echo/continue", {"token_ids": [10**6]})[0] == 400
    assert server.call("/plugins/echo/engine")[1]["steps"] > 0


def test_an_endpoint_cannot_shadow_a_core_route_and_its_exception_names_it(server: LiveServer) -> None:
    """A path that climbs out of the prefix reaches nobody; a bug is a 500 with the plugin's name, counted."""
    assert server.call("/v1/models")[1]["object"] == "list"
    assert server.call("/v1/models", key="")[0] == 401
    status, answer = server.call("/plugins/rogue/broken")
    metrics = server.call("/metrics")[1]

    assert (status, answer["error"]["code"]) == (500, "plugin_failed")
    assert "'rogue' of rogue 1.0" in answer["error"]["message"] and "no answer left" in answer["error"]["message"]
    assert 'graftlm:plugin_errors_total{plugin="rogue:rogue"} 1.0' in metrics
    assert 'graftlm:plugin_call_seconds_total{plugin="graftlm-echo-endpoint:echo"}' in metrics
    assert server.complete()


def test_the_stat_logger_wrote_what_ended(server: LiveServer) -> None:
    """One line for each request, in the file that the setting names."""
    server.complete(max_tokens=3)
    lines = lines_of(server.lines, 1)  # type: ignore[attr-defined]

    assert {line["kind"] for line in lines} == {"request"}
    assert lines[-1]["model"] == "folder://tiny"
