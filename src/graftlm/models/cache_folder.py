"""The user's cache folder: where fetched models and cached facts are kept, and how two processes share it.

It does not know what is kept there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from graftlm.config import environment
from graftlm.contracts.errors import StartupError


def cache_root() -> Path:
    """Return GRAFTLM_CACHE, else XDG_CACHE_HOME/graftlm, else ~/.cache/graftlm, whether it is there or not."""
    root = environment.get("GRAFTLM_CACHE")
    return Path(root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graftlm")


def cache_folder(name: str) -> Path:
    """Make and return the folder `name` in the cache folder."""
    folder = cache_root() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"the cache folder {str(folder)!r} cannot be made: {error.strerror}; "
            "set GRAFTLM_CACHE to a folder that you may write"
        ) from error
    return folder


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold `file` as a lock between processes; it is freed when its holder dies. The file stays."""
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def replace_file(file: Path, text: str) -> None:
    """Write `text` to `file` in one step, so that no reader sees half of it."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        with contextlib.suppress(OSError):  # it has been moved, or could not be made
            partial.unlink()
