"""What an extension point is and which processes a plugin may run in; does not know which points exist."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")

#: The version of everything a plugin may import; a manifest's `api` range is checked against it before import.
API_VERSION = "1.0"

#: Every entry-point group of ours is this plus the point's name.
GROUP_PREFIX = "graftlm."


class Role(StrEnum):
    """What a process does; a process may have several roles when floors share it."""

    FRONTEND = "frontend"
    ENGINE = "engine"
    WORKER = "worker"
    INSPECTOR = "inspector"


ALL_ROLES: frozenset[Role] = frozenset(Role)


@dataclasses.dataclass(frozen=True, slots=True)
class ExtensionPoint(Generic[T]):
    """A place that plugins extend; T is what an entry point of its group must be.

    `key`: the entry-point name is looked up, so only one distribution may claim it; else the name is a label and
    all load. `opt_in`: a plugin takes part only when it is named. `imported` tells when the target is imported.
    """

    name: str
    key: bool
    roles: frozenset[Role]
    imported: str
    doc: str
    opt_in: bool = False
    provisional: bool = False

    @property
    def group(self) -> str:
        """The entry-point group."""
        return GROUP_PREFIX + self.name
