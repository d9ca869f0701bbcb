"""Ends a child process whose call does not come back, once its parent was told why; knows nothing of the call.

A process without a parent of ours is somebody's own program, and is not ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

from graftlm.processes.channel import Channel
from graftlm.processes.failure import Failure
from graftlm.processes.lifeline import last_words

logger = logging.getLogger(__name__)

EXIT_HUNG = 1

#: How much later a call is given up that lets no thread of Python run, in seconds: nobody here can say why then.
_BLOCKED_S = 5.0

_parent: Channel | None = None


def hold_parent(channel: Channel) -> None:
    """Make the other end of `channel` the parent of this process."""
    global _parent
    _parent = channel


@contextlib.contextmanager
def given_up_after(limit_s: float, error: Callable[[str], Exception]) -> Iterator[None]:
    """Fail with `error(place)` and end this child process when the block takes longer than `limit_s` seconds.

    `place` is where the block's thread is then, as "file, line N, in function".
    """
    parent = _parent
    if parent is None or last_words() == -1:
        yield
        return
    ended, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        if not ended.wait(limit_s):
            failure = Failure.of(error(_place(thread)))
            logger.error("call given up limit_s=%g: %s", limit_s, failure.cause)
            parent.failed(failure)
            os._exit(EXIT_HUNG)

    watcher = threading.Thread(target=watch, name="graftlm-hung-calls", daemon=True)
    watcher.start()
    faulthandler.dump_traceback_later(limit_s + _BLOCKED_S, exit=True, file=last_words())
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        ended.set()
        watcher.join()


def _place(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_qualname}"
