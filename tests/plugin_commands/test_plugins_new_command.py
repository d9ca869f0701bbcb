"""`graftlm plugins new`: what it writes works at once, under its own tests and under a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from plugin_packages import Site, build_wheels, run_graftlm
from server import Server

KINDS = ("platform", "model", "op", "attention", "endpoint", "stat_logger")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A package of each kind, written by the command; folder by kind."""
    folder = tmp_path_factory.mktemp("written")
    found = {}
    for kind in KINDS:
        place = folder / f"graftlm_new_{kind}"
        done = run_graftlm("plugins", "new", kind.replace("_", "-"), f"new-{kind}", "--directory", str(place))
        assert done.returncode == 0, done.stderr
        assert f"Next: cd {place} && pip install --editable . pytest && python -m pytest" in done.stdout
        found[kind] = place
    return found


@pytest.fixture(scope="module")
def new_site(written, tmp_path_factory):
    """All of them built and installed into one folder."""
    folder = tmp_path_factory.mktemp("new")
    return Site(folder / "site").install(*build_wheels(list(written.values()), folder))


@pytest.fixture(scope="module")
def rivals(tmp_path_factory):
    """Somebody else's platform, and somebody else's op for the layer that the template replaces."""
    points = {
        "platform_plugins": {"rival": "rival_pkg:detect"},
        "custom_ops": {"graftlm.layers.activation.SiluAndMul": "rival_pkg:Op"},
    }
    code = "def detect():\n    return 'graftlm.platforms.cpu:CpuPlatform'\n"
    site = Site(tmp_path_factory.mktemp("rivals") / "site")
    return site.write("rival-pkg", entry_points=points, files={"rival_pkg.py": code})


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_passes_its_own_tests(written, new_site, rivals, kind, tmp_path):
    """Installed, with nothing but its tests in the folder, and whatever else is installed beside it."""
    path = os.pathsep.join([str(rivals.folder), new_site.environment["PYTHONPATH"]])
    tests = tmp_path / "tests"
    (written[kind] / "tests").rename(tests)
    try:
        (tmp_path / "pyproject.toml").write_text((written[kind] / "pyproject.toml").read_text())
        env = {**os.environ, **new_site.environment, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, env=env,
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    finally:
        tests.rename(written[kind] / "tests")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_runs_on_all_of_them(new_site, tmp_path, tiny_llama):
    """The new platform serves the new architecture with the new op and attention; endpoint and stat logger work."""
    lines = tmp_path / "requests.jsonl"
    flags = [
        "--hf-overrides", '{"architectures": ["NewModelForCausalLM"]}', "--attention-backend", "NEW_ATTENTION",
        "--enable-plugin", "new_endpoint", "--plugin-config", f"new_stat_logger.path={lines}",
    ]  # fmt: skip
    with Server([str(tiny_llama), *flags], env=new_site.environment) as server:

        def get(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(server.base_url + path, data, headers)
            with urllib.request.urlopen(request, timeout=200) as answer:
                return json.load(answer)

        ask = {"model": str(tiny_llama), "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        answered = get("/v1/completions", ask)
        status = get("/plugins/new_endpoint/status")
        told = get("/plugins?events=1")
        deadline = time.monotonic() + 60
        while not (lines.exists() and lines.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)  # the stat logger has a thread of its own

    rows = {row["distribution"]: row["state"] for row in told["plugins"]}
    (swap,) = {e["facts"]["replacement"] for e in told["events"] if e["event"] == "op_swapped"}
    assert answered["usage"]["completion_tokens"] == 4
    assert status["alive"] is True and status["kv_cache_tokens"] > 0
    assert told["plan"]["platform"]["distribution"] == "graftlm-new-platform"
    assert swap == "graftlm_new_op.op.NewOpSiluAndMul"
    assert {rows[f"graftlm-new-{kind.replace('_', '-')}"] for kind in KINDS} == {"active"}
    assert json.loads(lines.read_text().splitlines()[0])["output_tokens"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_installed_with_its_manifest(kind, new_site):
    """Not only where it is installed as editable."""
    assert (new_site.folder / f"graftlm_new_{kind}" / "graftlm_plugin.toml").is_file()


def test_the_memory_of_a_new_platform_is_had_at_once(new_site):
    """Gigabytes of KV cache, of a machine that is only pretended, take seconds and may not be there."""
    script = "from graftlm_new_platform.platform import MEMORY_BYTES as size; print(size)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **new_site.environment}, capture_output=True, text=True
    )

    assert 2**28 <= int(done.stdout) <= 2**30


def test_what_is_written_is_declared_sound(new_site):
    """The doctor finds nothing wrong with any of them."""
    done = run_graftlm("plugins", "doctor", "--json", env=new_site.environment)
    report = json.loads(done.stdout)

    assert done.returncode == 0, report
    assert {row["state"] for row in report["plugins"]} == {"sound"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], f"required: KIND, NAME; the kinds are {', '.join(KINDS)}"),
        (["op"], f"required: NAME; the kinds are {', '.join(KINDS)}"),
        (["platfrom", "acme"], f"'platfrom'; the kinds are {', '.join(KINDS)}; did you mean 'platform'?"),
        (["quantization", "acme"], f"'quantization'; the kinds are {', '.join(KINDS)}"),
        (["zzz", "acme"], f"no template is called 'zzz'; the kinds are {', '.join(KINDS)}"),
        (["op", "Acme"], "lower-case letters and digits with single dashes"),
        (["op", "acme--chip"], "'acme--chip' is no name"),
        (["op", "../acme"], "is no name"),
        (["op", "class"], "is a word of Python"),
        (["op", "kernels"], "choose another name"),
    ],
)
def test_a_wrong_kind_or_name_is_refused(tmp_path, words, part):
    """Code 2, one line, and nothing is written."""
    pytest.importorskip("graftlm_kernels") if "kernels" in words else None
    done = run_graftlm("plugins", "new", *words, "--directory", str(tmp_path / "new"))

    assert done.returncode == 2
    assert part in done.stderr.strip().splitlines()[-1] and "Traceback" not in done.stderr
    assert not Path(tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path):
    """A folder with anything in it is left alone; an empty one may be used."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "pyproject.toml").write_text("mine")
    (tmp_path / "empty").mkdir()
    full = run_graftlm("plugins", "new", "op", "acme", "--directory", str(tmp_path / "full"))
    empty = run_graftlm("plugins", "new", "op", "acme", "--json", "--directory", str(tmp_path / "empty"))

    assert full.returncode == 1 and "not an empty folder; choose another --directory" in full.stderr
    assert (tmp_path / "full" / "pyproject.toml").read_text() == "mine"
    files = json.loads(empty.stdout)["files"]
    assert empty.returncode == 0 and files and all((tmp_path / "empty" / file).is_file() for file in files)
