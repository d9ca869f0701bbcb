"""Installing and uninstalling plugin packages with the real pip; all other tests only unzip a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

from plugin_packages import DUMMY_MODEL, DUMMY_PLATFORM, Site, copy_source, run_graftlm

from graftlm.plugins.plugin import BUILT_IN_DISTRIBUTIONS as BUILT_IN


def pip(*arguments: str, python: Path | None = None) -> str:
    """Run pip, offline, of this environment, upon the environment of `python` if given."""
    target = ["--python", str(python)] if python is not None else []
    done = subprocess.run(
        [sys.executable, "-m", "pip", *target, "--disable-pip-version-check", *arguments], capture_output=True,
        text=True, stdin=subprocess.DEVNULL, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def own_plugins(listing: str) -> dict[str, str]:
    """Return name -> state of the plugins that are neither graftlm's nor those of its kernels."""
    rows: list[dict[str, Any]] = json.loads(listing)["plugins"]
    return {row["name"]: row["state"] for row in rows if row["distribution"] not in BUILT_IN}


def test_pip_install_makes_a_plugin_take_part(site: Site, tmp_path: Path):
    """After `pip install --target` of the model package its plugin runs; nothing else is needed."""
    before = own_plugins(run_graftlm("plugins", "--json", env=site.environment).stdout)
    source = copy_source(DUMMY_MODEL, tmp_path / "source")
    pip("install", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site.folder), str(source))
    after = own_plugins(run_graftlm("plugins", "--json", env=site.environment).stdout)

    assert before == {}
    assert after == {"register_dummy_model": "active", "MyPublishedLlamaForCausalLM": "idle"}


def test_pip_install_and_uninstall_in_an_environment(tmp_path: Path):
    """In an environment of its own the platform package is installed, dependencies checked, and gone again."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    parent = sysconfig.get_path("purelib")
    # The environment sees ours below its own: torch is there already.
    Path(packages, "parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")

    def listed() -> dict[str, str]:
        command = [str(python), "-m", "graftlm", "plugins", "--json"]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return own_plugins(done.stdout)

    source = copy_source(DUMMY_PLATFORM, tmp_path / "source")
    pip("install", "--no-index", "--no-build-isolation", str(source), python=python)
    assert listed() == {"dummy_platform_plugin": "active", "dummy_custom_ops": "idle", "dummy": "idle"}

    pip("uninstall", "--yes", "graftlm-dummy-platform", python=python)
    assert listed() == {}
