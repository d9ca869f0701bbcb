"""Functions that end what a process started, called when it ends: in order, or at once by whoever cuts it short.

It does not know what they end.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_functions: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call `function` when this process ends, also where it ends without the interpreter's own exit functions."""
    _functions.append(function)
    atexit.register(function)


def call_exit_functions() -> None:
    """Call them now, the latest first; for a process that ends with `os._exit`."""
    while _functions:
        function = _functions.pop()
        atexit.unregister(function)
        function()
