"""Keeps what all code of a process relies on as it was before a plugin ran; knows no plugin."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Surroundings:
    """A picture of the standard streams, sys.path, the recursion limit and the handlers of a server's end."""

    def __init__(self) -> None:
        self._streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
        self._path = list(sys.path)
        self._recursion_limit = sys.getrecursionlimit()
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        # Nobody knows of this one, so who closes it closes whatever there is.
        self._descriptor = os.open(os.devnull, os.O_RDONLY)
        self._opened = os.fstat(self._descriptor)

    def are_closed(self) -> bool:
        """Tell, once, whether descriptors were closed that the process may need."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._opened):
                os.close(self._descriptor)
                return False
        return True

    def restore(self) -> list[str]:
        """Put back what has changed since, and say what it was; what was only added stays."""
        return list(self._changes())

    def _changes(self) -> Iterator[str]:
        if (limit := sys.getrecursionlimit()) < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
            yield f"a recursion limit of {limit}"
        for name, stream in self._streams.items():
            if getattr(sys, name) is not stream:
                setattr(sys, name, stream)
                yield f"another sys.{name}"
        if lost := [entry for entry in self._path if entry not in sys.path]:
            sys.path[:] = [*self._path, *(entry for entry in sys.path if entry not in self._path)]
            yield f"a sys.path without {', '.join(map(repr, lost[:3]))}"
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)
                    yield f"another handler of {number.name}"
