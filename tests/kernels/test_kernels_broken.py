"""Kernels whose library cannot be loaded: one warning, and everything is computed in plain torch."""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from gguf_files import write_llama_gguf
from plugin_packages import run_graftlm

ANSWER = ("-p", "hello", "--temperature", "0", "--max-tokens", "4")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed kernels' package; its distribution lies beside it."""
    distribution = metadata.distribution("graftlm-kernels")
    for file in distribution.files or ():
        if file.parts[0].startswith("graftlm_kernels") and "__pycache__" not in file.parts:
            place = tmp_path / "site" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), place)
    return tmp_path / "site" / "graftlm_kernels"


def seen(package: Path) -> dict[str, str]:
    """The environment of a process that takes the copy for the installed one."""
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(params=["empty", "gone"])
def broken(package: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that sees kernels without what makes them compute."""
    (library,) = package.glob("_native*.so")
    library.unlink()
    if request.param == "empty":
        library.touch()
    return seen(package)


@pytest.mark.parametrize("flags", [(), ("--no-plugins",), ("--disable-plugin", "graftlm-kernels")], ids=" ".join)
def test_the_engine_serves_without_them(broken, tiny_llama, tmp_path, flags):
    """Said once, with the distribution, the reason and the cure; not at all where a flag leaves them out."""
    write_llama_gguf(tmp_path / "m.gguf", tiny_llama, format="Q4_0")

    done = run_graftlm("run", str(tmp_path / "m.gguf"), *ANSWER, *flags, "--log-level", "warning", env=broken)

    said = [line for line in done.stderr.splitlines() if "kernels" in line]
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert "Traceback" not in done.stderr
    assert len(said) == (0 if "--disable-plugin" in flags else 1)
    for line in said:
        for part in (
            "graftlm-kernels 0.",
            "cannot be loaded (",
            "make install",
            "--disable-plugin graftlm-kernels",
        ):
            assert part in line


def test_who_names_one_of_them_is_told_why_not(broken, tiny_llama):
    """In one sentence, before anything is computed."""
    done = run_graftlm("run", str(tiny_llama), *ANSWER, "--enable-plugin", "graftlm-kernels:gguf", env=broken)

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("graftlm: error:") and "native library cannot be loaded" in line


def test_the_cure_of_kernels_that_fail_is_accepted(package, tiny_llama):
    """Such as those of another version, whose library loads: the named flag leaves all of them out."""
    (package / "native.py").write_text("raise ImportError('made for another engine')")
    failed = run_graftlm("run", str(tiny_llama), *ANSWER, env=seen(package))
    words = re.search(r"leave it out with (--disable-plugin) (\S+)$", failed.stderr.splitlines()[-1])

    assert failed.returncode == 1 and words, failed.stderr
    done = run_graftlm("run", str(tiny_llama), *ANSWER, *words.groups(), env=seen(package))
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_doctor_and_plugins_report_it(broken):
    """The doctor among the problems, with the cure; the list gives each of them the same reason."""
    report = json.loads(run_graftlm("doctor", "--json", env=broken).stdout)
    rows = json.loads(run_graftlm("plugins", "--json", env=broken).stdout)["plugins"]

    (problem,) = report["problems"]
    assert "gguf" in problem and "of graftlm-kernels 0." in problem and "make install" in problem
    assert "refused" in report["kernels"]["graftlm-kernels"]
    own = [row for row in rows if row["distribution"] == "graftlm-kernels"]
    assert {row["state"] for row in own} == {"refused"}
    assert all("cannot be loaded" in row["reason"] for row in own)


@pytest.mark.parametrize("module", ["attention", "quantization", "native"])
def test_doctor_finds_kernels_whose_python_code_fails(package, module):
    """Their library loads, and so nothing is refused: only a worker would have met the error."""
    (package / f"{module}.py").write_text("from graftlm.contracts.errors import GoneSince")
    report = json.loads(run_graftlm("doctor", "--json", env=seen(package)).stdout)

    (problem,) = report["problems"]
    for part in ("ImportError: cannot import name 'GoneSince'", "make install", "--disable-plugin graftlm-kernels"):
        assert part in problem
    assert report["kernels"]["graftlm-kernels"].endswith(", fails, see problems")


@pytest.mark.parametrize(("wish", "path"), [("generic", "generic"), ("neon", None)])
def test_doctor_names_the_instructions_that_would_run(wish, path):
    """And a wish that no run could follow is a problem, in the words of the run's own error."""
    report = json.loads(run_graftlm("doctor", "--json", env={"GRAFTLM_KERNELS_PATH": wish}).stdout)

    assert report["kernels"]["instructions"] == path
    assert ["GRAFTLM_KERNELS_PATH" in problem for problem in report["problems"]] == [True] * (path is None)
