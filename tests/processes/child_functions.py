"""What the tests ask children to do; a child finds this module through its parent's sys.path."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from graftlm.contracts.errors import StartupError
from graftlm.processes.channel import Channel

_seen: list[bytes] = []


def remember(payload: bytes) -> None:
    _seen.append(payload)


def echo(payload: bytes, channel: Channel) -> int:
    channel.status("nearly there")
    channel.ready(b"|".join([*_seen, payload]))
    while (message := channel.recv()) is not None:
        if message == b"raise":
            raise KeyError("no such thing")
        channel.send(b"echo " + message)
    return 0


def report_world(payload: bytes, channel: Channel) -> int:
    facts = {
        "env": os.environ.get("GRAFTLM_TEST_MARK", ""),
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "torch": "torch" in sys.modules,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mask": sorted(int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    channel.ready(msgspec.msgpack.encode(facts))
    channel.recv()
    return 0


def report_torch_threads(payload: bytes, channel: Channel) -> int:
    import torch

    channel.ready(str(torch.get_num_threads()).encode())
    return 0


def refuse(payload: bytes) -> None:
    raise StartupError("--tensor-parallel-size=2 does not divide 9 heads; use 1, 3 or 9")


def break_down(payload: bytes) -> None:
    error = ZeroDivisionError("three by nothing")
    error.add_note("in plugin acme of acme-graftlm 1.0")
    raise error


def leave(payload: bytes) -> None:
    sys.exit(3)


def be_stubborn(payload: bytes, channel: Channel) -> int:
    """Never look at the channel again."""
    channel.ready(str(os.getpid()).encode())
    while True:
        time.sleep(60)


def start_grandchild(payload: bytes, channel: Channel) -> int:
    from graftlm.processes.launch import start_child

    child = start_child("grandchild", start_method=payload.decode())  # type: ignore[arg-type]
    child.run("child_functions:be_stubborn", b"")
    channel.ready(child.wait_ready())
    channel.recv()
    child.stop()
    return 0


def start_helper(payload: bytes, channel: Channel) -> int:
    """Start a program as a plugin would, and tell how SIGTERM ends it."""
    helper = subprocess.Popen(["sleep", "1000"])
    channel.ready()
    channel.recv()
    helper.terminate()
    channel.send(str(helper.wait(60)).encode())
    return 0


def die_with_the_channel_open(payload: bytes, channel: Channel) -> int:
    """Leave it to a process that is forked, as plugin code may; after READY if there is a payload."""
    forked = os.fork()
    if forked == 0:
        time.sleep(60)
        os._exit(0)
    channel.status(str(forked))
    if payload:
        channel.ready()
        channel.recv()
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def crash_when_let_go(payload: bytes, channel: Channel) -> int:
    """End in native code once the parent wants nothing more, and before the watch of it ends us."""
    from graftlm.processes import child

    child.SHORT_GRACE_S = 60
    channel.ready()
    channel.recv()
    ctypes.string_at(0)
    return 0


def crash(payload: bytes, channel: Channel) -> int:
    """End in native code, after READY; with a payload, in a process of its own first, which leaves us alive."""
    if payload and os.fork() == 0:
        ctypes.string_at(0)
    if payload:
        os.wait()
    channel.ready()
    ctypes.string_at(0)
    return 0
