"""What the early child of a test is told to do."""

from __future__ import annotations

import os
import sys

import msgspec

from graftlm.processes.channel import Channel


def tell(payload: bytes, channel: Channel) -> int:
    """Say what this process sees of its parent."""
    facts = {"variable": os.environ.get("GIVEN_LATER"), "directory": os.getcwd(), "path": sys.path}  # noqa: PTH109
    channel.ready(msgspec.json.encode(facts))
    return 0


def set_variable(payload: bytes, channel: Channel) -> int:
    """Change the environment, as code of a plugin may."""
    os.environ["OF_A_PLUGIN"] = "yes"
    return 0
