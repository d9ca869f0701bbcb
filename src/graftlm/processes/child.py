"""What runs in a child process: it does what its parent asks, in order, and ends when its parent is gone.

`python -m graftlm.processes.child` starts one; `fork_server.py` forks others that behave the same. A function is
asked for by path, so this module knows neither plugins nor models.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import msgspec

from graftlm.processes import startup_trace
from graftlm.processes.channel import Channel, FrameKind
from graftlm.processes.exit_guard import guard_exits
from graftlm.processes.failure import Failure
from graftlm.processes.hung_calls import hold_parent
from graftlm.processes.lifeline import leave_last_words
from graftlm.processes.linking import wait_for_linking
from graftlm.processes.logs import LogSettings, configure_logging
from graftlm.processes.shutdown import leave_signals_to_parent

#: Exit code of a child that ended because its parent did.
EXIT_ORPHANED = 75
EXIT_FAILED = 1

#: What a child may use to end in order once its parent is gone: it may have processes of its own to end, or not.
GRACE_S = 1.0
SHORT_GRACE_S = 0.3


class Setup(msgspec.Struct, kw_only=True):
    """The first frame: what makes the child see the same modules and log like its parent.

    What comes from the system is in its own bytes, which need not be UTF-8.
    """

    name: str
    sys_path: list[bytes]
    cwd: bytes
    environment: dict[bytes, bytes] | None = None
    """The whole environment, for a child that was forked or started early; another has it already."""
    log: LogSettings
    trace_startup: bool = False
    """Whether to record where the start's time goes."""
    shared_directory: str = ""
    """Removed by the child when its parent is gone; the parent removes it otherwise."""


class Order(msgspec.Struct, kw_only=True):
    """Call `function` ("module:name") with these bytes."""

    function: str
    payload: bytes


_orphan_callbacks: list[Callable[[], None]] = []
_last_callbacks: list[Callable[[], None]] = []
_set_up = threading.Event()
_in_main = threading.Event()
_shared_directory = ""


def on_parent_gone(callback: Callable[[], None]) -> None:
    """Call `callback`, in a thread of its own, when the parent is gone; the process has GRACE_S left then."""
    _orphan_callbacks.append(callback)


def before_orphaned_end(callback: Callable[[], None]) -> None:
    """Call `callback` last thing before this process ends because its parent is gone."""
    _last_callbacks.append(callback)


def end_orphaned() -> NoReturn:
    """End this process now, its parent being gone."""
    for callback in tuple(_last_callbacks):
        callback()
    os._exit(EXIT_ORPHANED)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage while modules are imported: nearly all that they make stays, and a tenth is saved.

    Whoever calls `gc.freeze` afterwards keeps later collections from looking at it all, which takes as long again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_child(channel: Channel, lifeline: int) -> int:
    """Serve the parent's orders until its RUN is done; returns the exit code."""
    leave_signals_to_parent()
    leave_last_words(lifeline)
    hold_parent(channel)
    guard_exits()
    threading.Thread(target=_watch_parent, args=(lifeline,), name="parent watch", daemon=True).start()
    try:
        return _serve_orders(channel)
    except BaseException as error:
        channel.failed(Failure.of(error))
        return EXIT_FAILED


def _serve_orders(channel: Channel) -> int:
    while (frame := channel.recv_frame()) is not None:
        kind, data = frame
        match kind:
            case FrameKind.SETUP:
                _apply_setup(msgspec.msgpack.decode(data, type=Setup))
            case FrameKind.CALL:
                order = msgspec.msgpack.decode(data, type=Order)
                with startup_trace.span(order.function.rpartition(":")[2].replace("_", " ")):
                    _resolve(order.function)(order.payload)
            case FrameKind.RUN:
                order = msgspec.msgpack.decode(data, type=Order)
                main = _resolve(order.function)
                wait_for_linking()  # plugin code may change the environment
                _in_main.set()
                return int(main(order.payload, channel) or 0)
            case _:
                raise ValueError(f"a child takes no {kind.name} frame before it runs")
    _remove_shared_directory()
    return EXIT_ORPHANED


def _apply_setup(setup: Setup) -> None:
    global _shared_directory
    _shared_directory = setup.shared_directory
    _set_up.set()
    if setup.environment is not None:
        _replace_environment(setup.environment)
        _tell_preloaded_torch()
    if setup.trace_startup:
        startup_trace.begin(setup.name)
    os.chdir(setup.cwd)
    sys.path[:] = map(os.fsdecode, setup.sys_path)
    configure_logging(setup.log.levels, setup.log.fmt, setup.name)


def _replace_environment(environment: dict[bytes, bytes]) -> None:
    if environment != dict(os.environb):
        wait_for_linking()
        os.environ.clear()
        os.environb.update(environment)


def _tell_preloaded_torch() -> None:
    """Repeat to a forked child's torch what it reads from the environment only while it is imported."""
    torch = sys.modules.get("torch")
    count = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and count.isdecimal():
        torch.set_num_threads(int(count))


def _resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _watch_parent(lifeline: int) -> None:
    """Wait for the parent's end of the lifeline to close: nothing is ever written to it."""
    with contextlib.suppress(ConnectionError):  # a parent that is killed leaves our last words unread: a reset
        while os.read(lifeline, 1):
            pass
    _set_up.wait(SHORT_GRACE_S)  # a parent that died early may have left the directory's name in the pipe
    _remove_shared_directory()
    if _in_main.is_set():
        for callback in tuple(_orphan_callbacks):
            callback()
        time.sleep(GRACE_S if _orphan_callbacks else SHORT_GRACE_S)
    end_orphaned()


def _remove_shared_directory() -> None:
    if _shared_directory:
        shutil.rmtree(_shared_directory, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m graftlm.processes.child")
    parser.add_argument("--name", required=True, help="shown by ps; nothing else reads it")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    for descriptor in (options.channel, options.lifeline):
        os.set_inheritable(descriptor, False)
    return run_child(Channel(socket.socket(fileno=options.channel)), options.lifeline)


if __name__ == "__main__":
    # As a module of its own name, so that `on_parent_gone` is the one that runs here.
    from graftlm.processes.child import main as main_

    sys.exit(main_())
