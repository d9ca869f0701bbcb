"""A folder of fake installed distributions on sys.path: modules, dist-info, entry points, manifest."""

from __future__ import annotations

import importlib
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from graftlm.plugins import current, find_host
from graftlm.plugins.registry import withdraw_plugins


class FakeSite:
    """Distributions "installed" into temporary folders; discovery sees these and nothing else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: list[Path] = []
        self.packages: set[str] = set()

    def folder(self, name: str = "site") -> Path:
        place = self.root / name
        if place not in self.folders:
            place.mkdir()
            self.folders.append(place)
            sys.path.insert(0, str(place))
        return place

    def add(
        self,
        distribution: str,
        entry_points: dict[str, dict[str, str]],
        *,
        version: str = "1.0",
        source: str = "",
        package: str | None = None,
        manifest: str | None = None,
        folder: str = "site",
        egg: bool = False,
    ) -> Path:
        """Install a package named like the distribution; returns its metadata folder."""
        package = package or distribution.replace("-", "_")
        place = self.folder(folder)
        (place / package).mkdir(exist_ok=True)
        (place / package / "__init__.py").write_text(textwrap.dedent(source))
        if manifest is not None:
            (place / package / "graftlm_plugin.toml").write_text(textwrap.dedent(manifest))
        stem = distribution.replace("-", "_")
        info = place / (f"{stem}.egg-info" if egg else f"{stem}-{version}.dist-info")
        info.mkdir()
        header = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / ("PKG-INFO" if egg else "METADATA")).write_text(header)
        lines = []
        for group, entries in entry_points.items():
            lines += [f"[graftlm.{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
        if not egg:
            (info / "RECORD").write_text(f"{package}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
        self.packages.add(package)
        importlib.invalidate_caches()
        return info

    def distributions(self) -> list[metadata.Distribution]:
        return list(metadata.Distribution.discover(path=[str(f) for f in reversed(self.folders)]))

    def forget(self) -> None:
        for folder in self.folders:
            sys.path.remove(str(folder))
        # Only what was imported from here: a real package of the same name may be in use in this process.
        folders = tuple(str(folder) for folder in self.folders)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in self.packages and str(getattr(module, "__file__", "")).startswith(folders):
                del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Fake distributions for one test; afterwards the process has the host that it had before."""
    before = find_host()
    fake = FakeSite(tmp_path)
    monkeypatch.setattr("graftlm.plugins.discovery.metadata.distributions", fake.distributions)
    monkeypatch.setattr("graftlm.plugins.general._registered_by", {})
    monkeypatch.setattr("graftlm.plugins.transaction._orphans", [])
    current.hold_host(None)
    yield fake
    withdraw_plugins()
    current.hold_host(before)
    fake.forget()
