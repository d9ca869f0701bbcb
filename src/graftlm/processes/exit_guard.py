"""Keeps plugin code from ending a process in silence: `os._exit` and `os.abort` become errors that name the plugin.

So does `os.closerange`, which closes what the process talks to others by.

`sys.exit` is an exception already, which `calling` turns into the same error. A crash in native code cannot be kept
from; the stack that Python then prints names the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from graftlm.plugins.blame import current_call
from graftlm.plugins.errors import PluginCloses, PluginExits, PluginFailed
from graftlm.plugins.general import end_when_lost

#: Who may end the process while plugin code runs: our signal handlers, and children forked by plugin code.
_MAY_EXIT = frozenset({"graftlm", "multiprocessing"})

_guarded_process = -1


def guard_exits() -> None:
    """From now on a call into plugin code cannot end this process; a process forked by it ends as it likes."""
    global _guarded_process
    if _guarded_process == -1:
        os._exit = _guarded(os._exit, "os._exit")
        os.abort = _guarded(os.abort, "os.abort")
        os.closerange = _guarded(os.closerange, "os.closerange", PluginCloses)
        end_when_lost(_end_at_once)
    _guarded_process = os.getpid()


def _end_at_once(error: PluginFailed) -> NoReturn:
    """Leave without what would fail now: children end by themselves when their pipes close."""
    os.write(2, f"graftlm: error: {error}\n".encode(errors="backslashreplace"))
    os._exit(1)


def _guarded(
    real: Callable[..., Any], name: str, error: type[PluginExits | PluginCloses] = PluginExits
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if current_call() is None or os.getpid() != _guarded_process or caller in _MAY_EXIT:
            return real(*arguments)
        raise error(*arguments, call=name)

    return call
