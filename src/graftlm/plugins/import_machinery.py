"""What Python's imports know and two of our finders need: who waits for whom, and who is asked after a finder.

Python has no public way to ask for the former. An interpreter with another way to import is not known to have
threads that wait for each other.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_bootstrap: Any = getattr(importlib, "_bootstrap", None)
#: Where a thread is that waits for a module which another one imports.
_ACQUIRE = getattr(getattr(getattr(_bootstrap, "_ModuleLock", None), "acquire", None), "__code__", None)


def import_waits_for(thread: int, *, of: int) -> bool:
    """Tell whether thread `of` waits for a module that `thread` imports, or for one who waits for such a module."""
    frames = sys._current_frames()
    seen = {of}
    while (frame := frames.get(of)) is not None and frame.f_code is _ACQUIRE:
        of = getattr(frame.f_locals.get("self"), "owner", None) or 0
        if of == thread:
            return True
        if of in seen:
            return False
        seen.add(of)
    return False


def find_behind(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> Any:
    """Return the spec that the finders behind `finder` on sys.meta_path give, or None.

    All are asked if another thread has removed `finder` meanwhile.
    """
    finders = list(sys.meta_path)
    if finder in finders:  # one in front may ask others as well, and this one among them
        del finders[: finders.index(finder) + 1]
    for other in finders:
        find = getattr(other, "find_spec", None)
        spec = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None
