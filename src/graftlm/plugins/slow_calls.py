"""Says which plugin a start waits for, while it waits; ends no call and decides nothing.

Only calls before READY are watched, each by a timer of its own, and none of the engine's own plugins.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from graftlm.plugins.blame import Call, calling, current_call
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import held_host

logger = logging.getLogger(__name__)

#: After how many seconds a call is said to be slow, and how often from then on.
FIRST_S, AGAIN_S = 10.0, 60.0


@contextlib.contextmanager
def told_when_slow(call: Call | None = None, *, limit_s: float | None = None) -> Iterator[None]:
    """Log a warning while `call`, by default that around this block, takes long: whose, where and what to do.

    `limit_s` is told too: whoever gives one ends the call then.
    """
    call, host = call or current_call(), held_host()
    plugin = call.known() if call is not None else None
    if call is None or plugin is None or plugin.built_in or (host is not None and host.frozen):
        yield
        return
    ended = threading.Event()
    where = host.process if host is not None else "this process"
    timer = threading.Thread(
        target=_tell, args=(call, where, ended, limit_s), name="graftlm-slow-calls", daemon=True
    )
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.join()


@contextlib.contextmanager
def calling_at_start(plugin: Plugin | str, hook: str) -> Iterator[None]:
    """As `calling`, and told when it is slow: around what a start waits for."""
    with calling(plugin, hook), told_when_slow():
        yield


def _tell(call: Call, process: str, ended: threading.Event, limit_s: float | None) -> None:
    begun, wait = time.monotonic(), FIRST_S
    limit = f"; it is given up after {limit_s:g} s" if limit_s is not None else ""
    while not ended.wait(wait):
        plugin = call.known()
        assert plugin is not None
        logger.warning(
            "plugin_slow %s of %s %s takes %.0f s so far in process %r, hook %s; Ctrl-C ends the start, "
            "--disable-plugin %s leaves it out%s",
            plugin.name, plugin.distribution, plugin.version, time.monotonic() - begun, process, call.hook,
            plugin.left_out_by, limit,
        )  # fmt: skip
        wait = AGAIN_S
