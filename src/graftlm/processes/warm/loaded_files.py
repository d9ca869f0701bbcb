"""Which files made this process what it is, and whether a fresh one would be made of the same.

It looks at every module and mapped library, and at what could not be imported and now can. It imports nothing.
"""

from __future__ import annotations

import importlib.machinery
import os
import site
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from graftlm.processes.startup_trace import process_start_time

_SUFFIXES = tuple(importlib.machinery.all_suffixes())
_IMPORTED_BY_SITE = ("sitecustomize", "usercustomize")


class MissedImports:
    """The last finder on sys.meta_path: notes which top-level modules nobody found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if "." not in name:
            self.names.add(name)


class LoadedFiles:
    """The files as they are now; `missed` are modules that could not be imported."""

    def __init__(self, missed: Iterable[str] = ()) -> None:
        self._stamps = {path: stamp for path in _files() if (stamp := stamp_of(path)) is not None}
        self._homes: dict[str, str] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if "." not in name and name != "__main__" and file is not None:
                place = Path(file).parent
                self._homes[name] = str(place.parent if hasattr(module, "__path__") else place)
        self._missed = {*missed, *_IMPORTED_BY_SITE} - set(sys.modules)
        self._startup = startup_files()

    def __len__(self) -> int:
        return len(self._stamps)

    def changed(self) -> list[str]:
        """Return the files that are not as they were."""
        return [path for path, stamp in self._stamps.items() if stamp_of(path) != stamp]

    def startup_changed(self) -> list[str]:
        """Say which lines every interpreter runs by itself are not those that this one ran."""
        then, now = self._startup, startup_files()
        others = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        return [f"{name}, which every interpreter runs as it starts, is not as it was" for name in others]

    def changed_while_loading(self) -> list[str]:
        """Return the files written since this process was started: it may have read what was before."""
        started = process_start_time()
        if started is None:
            return []
        since, now = int(started * 1e9), time.time_ns()
        return [path for path, (mtime_ns, *_) in self._stamps.items() if since < mtime_ns <= now]

    def found_elsewhere(self, search_path: Iterable[str]) -> list[str]:
        """Name the modules that a process with this sys.path would import from another place, or at all."""
        wanted = self._homes.keys() | self._missed
        found: dict[str, str] = {}
        for folder in search_path:
            for name in _modules_in(folder, wanted - found.keys()):
                found[name] = folder
        lines = []
        for name in sorted(found):
            home = self._homes.get(name)
            if home is None:
                lines.append(f"the module {name} can be imported now, from {found[name]}")
            elif os.path.realpath(home) != os.path.realpath(found[name]):
                lines.append(f"the module {name} would now come from {found[name]}, not from {home}")
        return lines


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """Return modification time in ns, size and inode; None if there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - some two thousand of them, for each question
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def startup_files() -> dict[str, str]:
    """Return the .pth files that run code, such as the import hook of an editable install, each with its code.

    Those that only name folders are seen by what is found in the folders.
    """
    if not sys.flags.no_site:
        folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
        files = sorted(file for folder in folders for file in Path(folder).glob("*.pth"))
        return {str(file): code for file in files if (code := _code_of(file))}
    return {}


def _code_of(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except (FileNotFoundError, PermissionError):  # it is just being removed, or not for us
        return ""
    return "\n".join(line for line in lines if line.startswith(("import ", "import\t")))


def _files() -> set[str]:
    modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    mapped = {line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines() if " /" in line}
    libraries = {f"/{name}" for name in mapped if ".so" in name or os.access(f"/{name}", os.X_OK)}
    return {file for file in modules if isinstance(file, str)} | libraries


def _modules_in(folder: str, names: set[str]) -> list[str]:
    """Return which of the modules lie in a folder; those in an archive are not looked for."""
    try:
        entries = set(os.listdir(folder or "."))  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []
    stems = {entry.partition(".")[0] for entry in entries}
    return [name for name in names & stems if _is_module(folder or ".", name, entries)]


def _is_module(folder: str, name: str, entries: set[str]) -> bool:
    if any(f"{name}{suffix}" in entries for suffix in _SUFFIXES):
        return True
    # A folder without an __init__ counts only where no later one has the module, so not for us.
    return name in entries and any((Path(folder) / name / f"__init__{suffix}").exists() for suffix in _SUFFIXES)
