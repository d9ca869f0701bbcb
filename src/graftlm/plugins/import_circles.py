"""Tells which threads wait for each other in imports, as Python itself finds out before it lets one wait.

Python has no public way to ask. An interpreter with another way to import is not known to have such circles.
"""

from __future__ import annotations

import importlib
import sys
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
