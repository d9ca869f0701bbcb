"""One installed distribution, as its metadata folder tells of it; knows no extension point and imports nothing.

Metadata is whatever lies on the machine: a half-finished installation, a file in another encoding, a line that is
none. It is read as far as it goes, and what is wrong with it is said, so that one bad folder stops nobody else.
"""

from __future__ import annotations

from functools import cached_property
from importlib import metadata
from pathlib import Path

from graftlm.plugins.plugin import normalized
from graftlm.plugins.points import GROUP_PREFIX

_ENTRY_POINTS = "entry_points.txt"

#: Groups of an engine whose plugin authors may expect us to read them.
_FOREIGN_PREFIX = "vllm."

#: What reading metadata raises where it is damaged, in all versions of Python.
_DAMAGE = (ValueError, TypeError, LookupError, OSError)


class Installed:
    """Name, version and our entry points of a distribution, and what is wrong with them."""

    def __init__(self, dist: metadata.Distribution, order: int) -> None:
        path = getattr(dist, "_path", None)
        self._dist = dist
        self.order = order
        self.location = Path(str(path)) if path is not None else Path(str(dist.locate_file("")))
        self._unreadable = ""
        self.foreign: tuple[metadata.EntryPoint, ...] = ()
        """What it publishes for vLLM, which takes no part here."""
        self.entries = self._read_entries()
        stem, _, suffix = self.location.name.rpartition(".")
        self.is_egg = suffix != "dist-info"
        self._folder_name = stem.partition("-")[0] if path is not None else ""
        self.key = normalized(self._folder_name or self._field("Name"))

    @cached_property
    def name(self) -> str:
        """As its metadata spells it; that of its folder where there is none."""
        return self._field("Name") or self._folder_name or "unknown"

    @cached_property
    def version(self) -> str:
        return self._field("Version") or "unknown"

    @cached_property
    def damage(self) -> str:
        """Why its plugins must be refused, or ""."""
        missing = next((field for field in ("Name", "Version") if not self._field(field)), "")
        if self._unreadable or not missing:
            return self._unreadable
        return f"the metadata in {self.location} has no readable {missing}; install {self.name} again"

    def _read_entries(self) -> list[metadata.EntryPoint]:
        try:
            text = self._dist.read_text(_ENTRY_POINTS) or ""
            ours, foreign = GROUP_PREFIX in text, _FOREIGN_PREFIX in text
            found = self._dist.entry_points if ours or foreign else ()
            self.foreign = tuple(e for e in found if e.group.startswith(_FOREIGN_PREFIX))
            return [entry for entry in found if entry.group.startswith(GROUP_PREFIX)]
        except _DAMAGE as error:
            problem = error if isinstance(error, (UnicodeError, OSError)) else "a line is not NAME = VALUE"
            self._unreadable = f"its {self.location / _ENTRY_POINTS} cannot be read ({problem}); install it again"
            return _salvaged(self.location / _ENTRY_POINTS)

    def _field(self, name: str) -> str:
        try:
            return str(self._dist.metadata[name] or "")
        except _DAMAGE:
            return ""


def _salvaged(file: Path) -> list[metadata.EntryPoint]:
    """Read what can be read of our groups: names that are to be refused, not to be overlooked."""
    try:
        text = file.read_bytes().decode(errors="backslashreplace")
    except OSError:
        return []
    found, group = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif line and not line.startswith("#") and group.startswith(GROUP_PREFIX):
            name, _, value = line.partition("=")
            found.append(metadata.EntryPoint(name.strip(), value.strip(), group))
    return found
