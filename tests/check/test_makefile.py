"""`make install` builds the kernels until they can be loaded, and never fails because they cannot be built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Stands for the virtual environment's Python: pip "builds" kernels that load where no file `broken` lies.
PYTHON = """#!/bin/sh
case "$*" in
  *graftlm_kernels._native*) test -e built && echo loads ;;
  *./kernels) if test -e broken; then exit 1; else touch built; fi ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose engine is installed."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "kernels/pyproject.toml", "kernels/CMakeLists.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv" / ".stamps").mkdir()
    (tmp_path / ".venv" / ".stamps" / "install").touch()
    return tmp_path


def install(checkout: Path, compiler: str = "c++") -> str:
    done = subprocess.run(
        ["make", "install", f"COMPILER={compiler}"], cwd=checkout, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_kernels_are_tried_again_until_they_are_built(checkout: Path) -> None:
    """Without a compiler, then with a build that fails, then with one that works; then there is nothing to do."""
    (checkout / "broken").touch()
    assert "no C++ compiler" in install(checkout, compiler="")
    assert "warning: graftlm-kernels were not built" in install(checkout)

    (checkout / "broken").unlink()
    assert "building graftlm-kernels" in install(checkout) and (checkout / "built").exists()
    assert "building" not in install(checkout)


def test_kernels_that_are_gone_or_changed_are_built_again(checkout: Path) -> None:
    """Somebody uninstalled them; their source is newer, and its build fails at first, which is told each time."""
    install(checkout)
    (checkout / "built").unlink()
    assert "building" in install(checkout) and (checkout / "built").exists()

    (checkout / "broken").touch()
    assert "building" not in install(checkout)
    later = (checkout / ".venv" / ".stamps" / "kernels").stat().st_mtime + 5
    os.utime(checkout / "kernels" / "CMakeLists.txt", (later, later))
    assert "warning" in install(checkout) and "warning" in install(checkout)
