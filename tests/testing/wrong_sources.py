"""Model sources that are wrong, each in one way that the suite must see."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from graftlm.contracts.checkpoint import ModelSource
from graftlm.contracts.errors import StartupError


class Sound(ModelSource):
    """Directories by their absolute path, with or without the scheme."""

    scheme = "shelf"

    def claims(self, model: str) -> bool:
        return model.startswith("/") and len(model) < 200 and Path(model).is_dir()

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        if revision is not None:
            raise StartupError(f"--revision={revision!r} means nothing here; leave it out")
        path = Path(model.removeprefix("shelf://"))
        if not path.is_dir():
            raise StartupError(f"{model!r} is not on the shelf; look what is there")
        return path


class HalfASource(ModelSource):
    scheme = "half"

    def claims(self, model: str) -> bool:
        return False


class WrongScheme(Sound):
    scheme = "My Shelf"


class WantsAPlace(Sound):
    def __init__(self, place: str) -> None:
        self.place = place


class AsksTheNetworkFirst(Sound):
    def claims(self, model: str) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("registry.invalid", 443), timeout=1)
        return super().claims(model)


class StartsAProcess(Sound):
    def claims(self, model: str) -> bool:
        return subprocess.run([sys.executable, "-c", ""], check=False).returncode == 1


class RaisesOnLongNames(Sound):
    def claims(self, model: str) -> bool:
        return Path(model).exists()


class AnswersAWord(Sound):
    def claims(self, model: str) -> Any:
        return model if super().claims(model) else ""


class ChangesItsMind(Sound):
    asked: ClassVar[set[str]] = set()

    def claims(self, model: str) -> bool:
        again = model in self.asked
        self.asked.add(model)
        return again


class LeavesAFolder(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        tempfile.mkdtemp(prefix="shelf-")
        return super().fetch(model, revision=revision, progress=progress)


class LeavesAFileWhenItFails(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        handle, name = tempfile.mkstemp(prefix="part-")
        os.close(handle)
        found = super().fetch(model, revision=revision, progress=progress)
        Path(name).unlink()
        return found


class PrintsItsProgress(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        if progress:
            print("100%")
        return super().fetch(model, revision=revision, progress=progress)


class DownloadsAlthoughLocal(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        with contextlib.suppress(OSError):
            socket.create_connection(("registry.invalid", 443), timeout=1)
        return super().fetch(model, revision=revision, progress=progress)


class NeedsTheNetwork(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        socket.getaddrinfo("registry.invalid", 443)
        return super().fetch(model, revision=revision, progress=progress)


class MarksTheModel(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        path = super().fetch(model, revision=revision, progress=progress)
        (path / ".fetched").touch()
        return path


class ReturnsText(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Any:
        return str(super().fetch(model, revision=revision, progress=progress))


class ReturnsARelativePath(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        return Path(super().fetch(model, revision=revision, progress=progress).name)


class ReturnsTheFolderAbove(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        return super().fetch(model, revision=revision, progress=progress).parent


class HasADefault(Sound):
    """Serves another model for a name that it does not know."""

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        with contextlib.suppress(StartupError):
            return super().fetch(model, revision=revision, progress=progress)
        return Path("/tmp")


class RaisesItsOwn(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        return {"known": Path("/tmp")}[model]


class NamesNothing(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        raise StartupError("there is no such model")


class IgnoresTheRevision(Sound):
    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        return super().fetch(model, revision=None, progress=progress)


class DiffersBetweenProcesses(Sound):
    def claims(self, model: str) -> bool:
        return hash(model) % 2 == 0
