"""What can be wrong with a checkpoint, with the sentence built by the class.

StartupError
├── BrokenCheckpoint        a file that is damaged, truncated or not there
├── UnsupportedCheckpoint   a file that is whole, but in a form this version cannot serve
└── MissingTensors          the files lack tensors that the architecture has
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from graftlm.contracts.errors import StartupError
from graftlm.plugins.spelling import nearest_names


class BrokenCheckpoint(StartupError):
    def __init__(self, path: Path | str, *, problem: str, cure: str) -> None:
        super().__init__(f"the checkpoint {str(path)!r} cannot be read: {problem}; {cure}")


class UnsupportedCheckpoint(StartupError):
    def __init__(self, path: Path | str, *, problem: str, cure: str) -> None:
        super().__init__(f"the checkpoint {str(path)!r} is not supported for now: {problem}; {cure}")


class MissingTensors(StartupError):
    def __init__(self, path: Path | str, *, missing: Iterable[str], architecture: str) -> None:
        names = sorted(missing)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        super().__init__(
            f"the checkpoint {str(path)!r} lacks tensors of {architecture}: {shown}; "
            "fetch it again, or name the right architecture with --hf-overrides"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean …?' with names near to `name`, or nothing."""
    near = nearest_names(name, known, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
