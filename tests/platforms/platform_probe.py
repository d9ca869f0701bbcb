"""What the tests run in a child process."""

from __future__ import annotations

from typing import Any

import msgspec

EARLY: list[str] = []


def read_platform_early(payload: bytes) -> None:
    """Read current_platform before the plan."""
    from graftlm.contracts.errors import StartupError

    try:
        from graftlm.platforms import current_platform

        EARLY.append(current_platform.device_name)
    except StartupError as error:
        EARLY.append(type(error).__name__)


def main(payload: bytes, channel: Any) -> int:
    """Report what this process has, as a worker does with READY."""
    import sys

    from graftlm.platforms import current_platform
    from graftlm.plugins import current_host

    host = current_host()
    host.freeze()
    told = {
        "early": EARLY,
        "platform": current_platform.device_name,
        "torch": "torch" in sys.modules,
        "discovery": "graftlm.plugins.discovery" in sys.modules,
        "ledger": host.ledger_bytes(),
    }
    channel.ready(msgspec.msgpack.encode(told))
    channel.recv()
    return 0
