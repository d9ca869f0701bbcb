"""Says which plugin a start waits for, while it waits; ends no call and decides nothing.

Only calls before READY are watched, each by a timer of its own, and none of the engine's own plugins.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from graftlm.plugins.blame import Call, current_call
from graftlm.plugins.process_host import held_host

logger = logging.getLogger(__name__)

#: After how many seconds a call is said to be slow, and how often from then on.
FIRST_S, AGAIN_S = 10.0, 60.0


@contextlib.contextmanager
def told_when_slow() -> Iterator[None]:
    """Log a warning while the plugin call around this block takes long: plugin, hook, process and what to do."""
    call, host = current_call(), held_host()
    plugin = call.known() if call is not None else None
    if call is None or plugin is None or plugin.built_in or (host is not None and host.frozen):
        yield
        return
    ended = threading.Event()
    where = host.process if host is not None else "this process"
    timer = threading.Thread(target=_tell, args=(call, where, ended), name="graftlm-slow-calls", daemon=True)
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.join()


def _tell(call: Call, process: str, ended: threading.Event) -> None:
    begun, wait = time.monotonic(), FIRST_S
    while not ended.wait(wait):
        plugin = call.known()
        assert plugin is not None
        logger.warning(
            "plugin_slow %s of %s %s takes %.0f s so far in process %r, hook %s; Ctrl-C ends the start, "
            "--disable-plugin %s leaves it out",
            plugin.name, plugin.distribution, plugin.version, time.monotonic() - begun, process, call.hook,
            plugin.label,
        )  # fmt: skip
        wait = AGAIN_S
