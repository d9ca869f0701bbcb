"""Reads a distribution's optional graftlm_plugin.toml without importing the package; decides nothing.

api = ">=1.0,<2"                    # the range of graftlm.plugins.API_VERSION it works with

[plugin.my_ops]                     # an entry point's name, or "point=name" when that is ambiguous
roles = ["worker"]                  # where it runs, of the roles that the point allows
before = ["other"]                  # order, by name or distribution:name
after = ["acme-base:ops"]
replaces = ["LlamaForCausalLM"]     # keys of others that it may take over

[choices]                           # names for a flag that code registers, so that --help can show them
quantization = ["acme_int8"]        # the flag, without dashes, as its option is spelled

[settings.threads]                  # read with graftlm.plugins.settings()
type = "int"                        # str, int, float or bool
default = 4
help = "Threads of the acme kernels."
"""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from graftlm.plugins.manifest_checks import problem_of
from graftlm.plugins.points import API_VERSION, Role
from graftlm.plugins.versions import in_range

MANIFEST = "graftlm_plugin.toml"

#: A manifest is read at every start; in bytes.
_LARGEST = 64 << 10


class PluginTable(msgspec.Struct, forbid_unknown_fields=True):
    roles: list[Role] = []
    before: list[str] = []
    after: list[str] = []
    replaces: list[str] = []


class Setting(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One setting that a distribution declares."""

    type: str = "str"
    default: Any = None
    help: str = ""


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What an entry point cannot say."""

    api: str = ""
    plugin: dict[str, PluginTable] = {}
    settings: dict[str, Setting] = {}
    choices: dict[str, list[str]] = {}


def find_package(package: str) -> Path | None:
    """Return the directory of a top-level package, or the file of a module, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ValueError, ImportError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None


def read_manifest(packages: list[str]) -> tuple[Manifest, str]:
    """Return the manifest that lies in one of `packages`, and why the distribution must be refused, or ""."""
    for package in packages:
        place = find_package(package)
        if place is None or not place.is_dir() or not (place / MANIFEST).is_file():
            continue
        return _read_file(place / MANIFEST)
    return Manifest(), ""


def _read_file(file: Path) -> tuple[Manifest, str]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except OSError as error:
        return Manifest(), f"its manifest {file} cannot be read: {error.strerror or error}"
    if len(data) > _LARGEST:
        return Manifest(), f"its manifest {file} is not valid: it is longer than {_LARGEST} bytes"
    return parse_manifest(data, file=str(file))


def parse_manifest(data: bytes, *, file: str = MANIFEST) -> tuple[Manifest, str]:
    """Return the manifest that the content of `file` is, and why the distribution must be refused, or ""."""
    try:
        raw = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Manifest(), f"its manifest {file} is not valid: {error}"
    except RecursionError:
        return Manifest(), f"its manifest {file} is not valid: its lists or tables are nested too deeply"
    if problem := problem_of(raw):
        return Manifest(), f"its manifest {file} is not valid: {problem}"
    manifest = msgspec.convert(raw, Manifest)
    return manifest, _refusal(manifest, file)


def _refusal(manifest: Manifest, file: str) -> str:
    try:
        if manifest.api and not in_range(API_VERSION, manifest.api):
            return (
                f"it works with plugin API {manifest.api}, and this graftlm has {API_VERSION}; "
                "install a version of the plugin, or of graftlm, that fits"
            )
    except ValueError as error:
        return f"its manifest {file} is not valid: api: {error}"
    return ""
