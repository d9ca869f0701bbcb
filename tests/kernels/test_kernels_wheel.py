"""Wheels of the kernels: what they are released with holds here, and what builds them fits the package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"


def test_the_tests_of_a_wheel_pass_with_the_installed_one():
    """They are run against each wheel before it is released, without torch, so nothing else would run them."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(KERNELS / "tests")],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout or "100%" in done.stdout


def test_wheels_are_built_for_every_python_that_the_package_takes():
    """From `requires-python` on; the tests that they run exist."""
    project = tomllib.loads((KERNELS / "pyproject.toml").read_text())
    wheels = project["tool"]["cibuildwheel"]
    least = int(project["project"]["requires-python"].removeprefix(">=3."))

    assert wheels["build"] == [f"cp3{minor}-*" for minor in range(least, least + len(wheels["build"]))]
    assert wheels["test-command"].endswith("{package}/tests")
    assert list((KERNELS / "tests").glob("test_*.py"))
