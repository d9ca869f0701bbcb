"""The model source `folder://NAME`: looks NAME up in the folders that the operator configured."""

from __future__ import annotations

import os
from pathlib import Path

from graftlm.contracts.checkpoint import ModelSource
from graftlm.contracts.errors import StartupError
from graftlm.plugins import settings


class FolderSource(ModelSource):
    """Makes short names of the models in a few well-known folders."""

    scheme = "folder"

    def __init__(self, folders: str | None = None) -> None:
        """Without argument, as the engine calls it, take the folders from the plugin's settings."""
        text = settings()["folders"] if folders is None else folders
        self.folders = [Path(folder).expanduser() for folder in text.split(os.pathsep) if folder]

    def claims(self, model: str) -> bool:
        return self._find(model) is not None

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        if revision is not None:
            raise StartupError(
                f"--revision={revision!r} means nothing to {model!r}: folders have none; leave it out"
            )
        found = self._find(model.removeprefix(f"{self.scheme}://"))
        if found is None:
            names = sorted(p.name for folder in self.folders if folder.is_dir() for p in folder.iterdir())
            places = ", ".join(map(str, self.folders))
            raise StartupError(
                f"{model!r} is in none of {places} (there is: {', '.join(names[:8]) or 'nothing'}); "
                "name the right folders with --plugin-config folder.folders=…"
            )
        return found.resolve()

    def _find(self, name: str) -> Path | None:
        # A name is a name: one that climbs out of its folder, or that no file can have, is none of ours.
        if not name or Path(name).name != name or len(name) > 255:
            return None
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)
