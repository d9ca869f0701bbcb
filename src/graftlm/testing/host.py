"""A plugin host for tests: the real discovery, selection, detection and loading, over chosen distributions only.

It writes no file. The modules that fake entry points name must be importable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from graftlm.platforms.bootstrap import apply_plan_in_child, bootstrap_frontend, child_payload
from graftlm.plugins import Role, find_host
from graftlm.plugins.current import current_host, hold_host
from graftlm.plugins.host import PluginHost
from graftlm.plugins.manifest import MANIFEST, Manifest, parse_manifest, read_manifest
from graftlm.plugins.plugin import normalized
from graftlm.plugins.points import GROUP_PREFIX
from graftlm.plugins.registry import reinstate, withdraw_plugins
from graftlm.plugins.selection import Selection


@dataclasses.dataclass(frozen=True, slots=True)
class FakeDistribution:
    """A distribution that looks installed: `entry_points` is extension point -> name -> "module:attr".

    `manifest` is the text of its graftlm_plugin.toml; a file in the package is not read.
    """

    name: str
    entry_points: Mapping[str, Mapping[str, str]]
    version: str = "1.0"
    manifest: str = ""

    @classmethod
    def from_source(cls, folder: Path | str) -> FakeDistribution:
        """Read what a package's source tree would install: its pyproject.toml and manifest.

        Its packages must be importable, from sys.path.
        """
        folder = Path(folder)
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        points = {
            group.removeprefix(GROUP_PREFIX): entries
            for group, entries in project.get("entry-points", {}).items()
            if group.startswith(GROUP_PREFIX)
        }
        manifests = sorted(folder.glob(f"*/{MANIFEST}")) or sorted(folder.glob(f"src/*/{MANIFEST}"))
        manifest = manifests[0].read_text(encoding="utf-8") if manifests else ""
        return cls(project["name"], points, version=project.get("version", "0"), manifest=manifest)

    @property
    def packages(self) -> set[str]:
        values = (value for entries in self.entry_points.values() for value in entries.values())
        return {value.partition(":")[0].partition(".")[0].strip() for value in values}


@contextlib.contextmanager
def plugin_host(
    *distributions: FakeDistribution | str,
    selection: Selection | None = None,
    platform: str | None = "cpu",
    role: Role | str = Role.FRONTEND,
    process: str = "test",
    plugin_config: Sequence[str] = (),
) -> Iterator[PluginHost]:
    """Bootstrap this process with the engine's own plugins and those of `distributions`; undo it afterwards.

    A string names an installed distribution. `platform` is chosen by name, as with --platform; None asks the
    detectors. A role other than the front end's gets its plan as a child process does.
    """
    before, withdrawn = find_host(), withdraw_plugins()
    hold_host(None)
    found = [*_installed("graftlm"), *(d for item in distributions for d in _resolved(item))]
    try:
        with (
            mock.patch("graftlm.plugins.discovery.metadata.distributions", lambda: found),
            mock.patch("graftlm.plugins.discovery.read_manifest", _manifest_reader(distributions)),
            # General plugins run once per process; here each host is a process of its own.
            mock.patch("graftlm.plugins.general._registered_by", {}),
        ):
            host = bootstrap_frontend(selection, platform=platform, plugin_config=plugin_config, process=process)
            if Role(role) is not Role.FRONTEND:
                apply_plan_in_child(child_payload(host, role=role, process=process))
            yield current_host()
    finally:
        reinstate(withdrawn)
        hold_host(before)


def _manifest_reader(
    distributions: Sequence[FakeDistribution | str],
) -> Callable[[list[str]], tuple[Manifest, str]]:
    fakes = {frozenset(d.packages): d for d in distributions if isinstance(d, FakeDistribution)}

    def read(packages: list[str]) -> tuple[Manifest, str]:
        fake = fakes.get(frozenset(packages))
        return read_manifest(packages) if fake is None else parse_manifest(fake.manifest.encode())

    return read


def _resolved(item: FakeDistribution | str) -> list[metadata.Distribution]:
    return _installed(item) if isinstance(item, str) else [_Metadata(item)]


def _installed(name: str) -> list[metadata.Distribution]:
    found = [d for d in metadata.distributions() if normalized(d.metadata["Name"] or "") == normalized(name)]
    if not found:
        raise LookupError(f"no distribution {name!r} is installed here; `pip list` shows those that are")
    return found


class _Metadata(metadata.Distribution):
    """The metadata of a fake distribution, as files would give it."""

    def __init__(self, fake: FakeDistribution) -> None:
        self._fake = fake

    def read_text(self, filename: str) -> str | None:
        match filename:
            case "METADATA":
                return f"Metadata-Version: 2.1\nName: {self._fake.name}\nVersion: {self._fake.version}\n"
            case "entry_points.txt":
                groups = self._fake.entry_points.items()
                return "".join(f"[graftlm.{point}]\n{_lines(entries)}\n" for point, entries in groups)
        return None

    def locate_file(self, path: Any) -> Path:
        return Path("/nowhere", f"{self._fake.name}.dist-info", str(path))


def _lines(entries: Mapping[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in entries.items())
