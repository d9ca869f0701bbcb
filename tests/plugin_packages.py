"""Plugin packages for tests: real ones, built as wheels from a copy, and small ones written on the spot.

A pure wheel that is unzipped into a folder of PYTHONPATH is installed, as far as Python can tell; that takes
milliseconds, and neither this environment nor the source tree is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples" / "plugins"
DUMMY_PLATFORM = EXAMPLES / "dummy_platform"
DUMMY_MODEL = EXAMPLES / "dummy_model"


def copy_source(source: Path, folder: Path) -> Path:
    """Copy a package's source tree, since building litters it."""
    place = folder / source.name
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    return place


def build_wheels(sources: list[Path], folder: Path) -> list[Path]:
    """Build each package once, offline, with this environment's setuptools; returns the wheels in their order."""
    wheels = []
    copies = [copy_source(source, folder / "sources") for source in sources]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--disable-pip-version-check", "--wheel-dir", str(folder / "wheels"), *map(str, copies)],
        check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=240,
    )  # fmt: skip
    for copy in copies:
        (wheel,) = (folder / "wheels").glob(f"*{copy.name}-*.whl")
        wheels.append(wheel)
    return wheels


class Site:
    """A folder of installed plugin packages, seen by every process that gets `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def install(self, *wheels: Path) -> Site:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.folder)
        return self

    def write(
        self,
        distribution: str,
        *,
        entry_points: Mapping[str, Mapping[str, str]],
        files: Mapping[str, str],
        version: str = "1.0",
    ) -> Site:
        """Install a distribution of these files; `entry_points` is point -> name -> value."""
        for name, text in files.items():
            place = self.folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(textwrap.dedent(text))
        stem = distribution.replace("-", "_")
        info = self.folder / f"{stem}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = []
        for point, entries in entry_points.items():
            lines += [f"[graftlm.{point}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
        recorded = [*files, f"{info.name}/METADATA", f"{info.name}/entry_points.txt", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in recorded))
        return self

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to see the packages, and nothing else of ours."""
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH", "")]))
        return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run_graftlm(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run the real command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "graftlm", *arguments], env={**os.environ, **(env or {})}, capture_output=True,
        text=True, stdin=subprocess.DEVNULL, timeout=timeout_s,
    )  # fmt: skip
