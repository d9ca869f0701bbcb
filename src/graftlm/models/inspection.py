"""Asks a helper process for the facts of a lazily registered model class, and remembers the answer on disk.

The answer holds while the engine's version and the files of the class's own distribution stay the same. It does
not import the class: that happens in `graftlm.models.inspect`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from graftlm.contracts.errors import StartupError
from graftlm.contracts.model import ModelSpec
from graftlm.models.cache_folder import cache_folder, replace_file
from graftlm.models.inspect import InspectionRequest, InspectionResult
from graftlm.plugins.current import find_host
from graftlm.plugins.points import Role
from graftlm.processes.apart import run_apart
from graftlm.processes.failure import describe_exit
from graftlm.version import __version__

logger = logging.getLogger(__name__)

_TIMEOUT_S = 120
_HASHED_SUFFIXES = (".py", ".so", ".pyd")


class InspectionFailed(StartupError):
    def __init__(self, architecture: str, class_path: str, *, owner: str, problem: str) -> None:
        super().__init__(
            f"the class {class_path!r} of architecture {architecture!r} (from {owner}) cannot be used: {problem}; "
            f"`python -m graftlm.models.inspect {class_path}` shows the traceback"
        )


def inspect_lazy(architecture: str, class_path: str, *, owner: str) -> ModelSpec:
    """Return the facts of the class at `class_path`, from the cache if nothing changed."""
    file = _file_of(cache_key(class_path, owner=owner))
    if file is not None and (spec := _read(file)) is not None:
        return spec
    started = time.monotonic()
    result = _ask(class_path)
    if result.spec is None:
        logger.debug("inspection failed class=%s\n%s", class_path, result.traceback)
        raise InspectionFailed(architecture, class_path, owner=owner, problem=result.error)
    logger.info(
        "architecture inspected architecture=%s class=%s seconds=%.1f",
        architecture, class_path, time.monotonic() - started,
    )  # fmt: skip
    if file is not None:
        _remember(file, result.spec)
    return result.spec


def _file_of(key: str) -> Path | None:
    """Return where the answer is kept; None, with a warning, where nothing can be."""
    try:
        return cache_folder("inspections") / f"{key}.json"
    except StartupError as error:
        logger.warning("inspection not remembered problem=%s", error)
        return None


def _remember(file: Path, spec: ModelSpec) -> None:
    try:
        replace_file(file, msgspec.json.encode(spec).decode())
    except OSError as error:
        logger.warning("inspection not remembered file=%s problem=%s", file, error.strerror)


def cache_key(class_path: str, *, owner: str) -> str:
    """Hash the engine's version, the class path and the code of the distribution `owner` that the class is from."""
    digest = hashlib.sha256(f"{__version__}\0{class_path}\0".encode())
    packages = {class_path.partition(":")[0].partition(".")[0], *_packages_of(owner)}
    for package in sorted(packages):
        for root, file in _files_of(package):
            digest.update(f"{file.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _packages_of(distribution: str) -> set[str]:
    """Name the top-level packages of an installed distribution, as far as it says."""
    try:
        text = importlib.metadata.distribution(distribution).read_text("top_level.txt")
    except importlib.metadata.PackageNotFoundError:
        return set()
    return set((text or "").split())


def _files_of(package: str) -> Iterator[tuple[Path, Path]]:
    """Yield (root, file) of all code of a top-level package, found without importing it."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin and Path(spec.origin).is_file():
            yield Path(spec.origin).parent, Path(spec.origin)
        return
    for folder in sorted(spec.submodule_search_locations):
        for file in sorted(Path(folder).rglob("*")):
            if file.suffix in _HASHED_SUFFIXES and file.is_file():
                yield Path(folder), file


def _read(file: Path) -> ModelSpec | None:
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=ModelSpec)
    except (msgspec.MsgspecError, OSError) as error:
        logger.warning("cached inspection unreadable file=%s problem=%s", file, error)
        return None


def _ask(class_path: str) -> InspectionResult:
    request = InspectionRequest(class_path, plan=_plan())
    try:
        command = [sys.executable, "-P", "-m", "graftlm.models.inspect"]
        done = run_apart(command, given=msgspec.msgpack.encode(request), timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return InspectionResult(error=f"its import took more than {_TIMEOUT_S} s")
    try:
        return msgspec.msgpack.decode(done.stdout, type=InspectionResult)
    except msgspec.MsgspecError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done.returncode >= 0 else []
        return InspectionResult(error=": ".join([f"the helper process {describe_exit(done.returncode)}", *last]))


def _plan() -> bytes:
    """Hand the helper this process's plugin plan, so that it imports the class in the same surroundings."""
    host = find_host()
    if host is None:
        return b""
    from graftlm.platforms.bootstrap import child_payload

    return child_payload(host, role=Role.INSPECTOR, process="inspector")
