"""Hashes the files of a distribution, so that processes and machines can agree on them; imports none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from graftlm.plugins.manifest import find_package
from graftlm.plugins.plan import DistributionFacts
from graftlm.plugins.plugin import BUILT_IN_DISTRIBUTIONS, Plugin, normalized

_LARGE_BYTES = 16 << 20
#: What installers write differently each time.
_VOLATILE = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def distribution_facts(plugins: Iterable[Plugin]) -> tuple[DistributionFacts, ...]:
    """Return version and file hash of each distribution that has one of `plugins`, as this process finds them."""
    packages: dict[str, set[str]] = {}
    for plugin in plugins:
        packages.setdefault(plugin.distribution, set()).add(plugin.package)
    return tuple(_facts(name, sorted(packages[name])) for name in sorted(packages))


def _facts(name: str, packages: list[str]) -> DistributionFacts:
    copies = sorted(metadata.Distribution.discover(name=name), key=_is_egg)
    if not copies:
        return DistributionFacts(name, "not installed", "")
    dist = copies[0]
    editable = _is_editable(dist)
    if normalized(name) in BUILT_IN_DISTRIBUTIONS:
        # The engine's own tree: a new installation rewrites RECORD, and a checkout is edited while it runs.
        record = dist.read_text("RECORD") or ""
        return DistributionFacts(name, dist.version, "" if editable else _text_hash(record))
    paths = _package_files(packages) if editable else _recorded_files(dist)
    return DistributionFacts(name, dist.version, _files_hash(paths or _package_files(packages)))


def _is_egg(dist: metadata.Distribution) -> bool:
    """As in discovery, installed metadata counts before an egg-info folder."""
    return not str(getattr(dist, "_path", "")).endswith(".dist-info")


def _is_editable(dist: metadata.Distribution) -> bool:
    direct_url = json.loads(dist.read_text("direct_url.json") or "{}")
    return bool(direct_url.get("dir_info", {}).get("editable")) or dist.read_text("RECORD") is None


def _recorded_files(dist: metadata.Distribution) -> dict[str, tuple[Path, str]]:
    """Return name -> (path, recorded hash) of every file that the installer noted and that matters."""
    found = {}
    for file in dist.files or []:
        path = Path(str(dist.locate_file(file)))
        if file.name in _VOLATILE or file.suffix == ".pyc" or ".." in file.parts or not path.is_file():
            continue
        found[str(file)] = (path, file.hash.value if file.hash else "")
    return found


def _package_files(packages: list[str]) -> dict[str, tuple[Path, str]]:
    """Return the same for packages found where an import would find them."""
    found = {}
    for package in packages:
        place = find_package(package)
        if place is None:
            continue
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        for path in files:
            if path.suffix != ".pyc" and "__pycache__" not in path.parts:
                found[f"{package}/{path.relative_to(place) if place.is_dir() else path.name}"] = (path, "")
    return found


def _files_hash(files: dict[str, tuple[Path, str]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        path, recorded = files[name]
        size = path.stat().st_size
        if size > _LARGE_BYTES and recorded:
            content = f"{recorded}:{size}"
        else:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
