"""The process of a warm parent: it prepares what it was told, alone and in one thread, then forks on request.

It holds no plugin code, and ends when it is told to, when nobody has wanted it for its time, or with its launcher
if it was started in the foreground. What it forked lives on: a child belongs to whoever asked for it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from graftlm.contracts.errors import StartupError
from graftlm.plugins.spelling import error_text
from graftlm.processes.channel import Channel, FrameKind
from graftlm.processes.child import Order, run_child, without_collections
from graftlm.processes.failure import Failure, is_expected
from graftlm.processes.fork_server import ending_when_unwanted
from graftlm.processes.logs import LogSettings, configure_logging
from graftlm.processes.shutdown import SIGNALS
from graftlm.processes.warm.circumstances import Circumstances
from graftlm.processes.warm.lender import Lender, Work, shorten
from graftlm.processes.warm.loaded_files import LoadedFiles, MissedImports
from graftlm.processes.warm.place import (
    Record,
    lost,
    pid_space,
    remove_record,
    socket_path,
    started_of,
    write_record,
)
from graftlm.processes.warm.process_title import set_process_title


class WarmOrder(msgspec.Struct, kw_only=True):
    """What a launcher wants: import `modules`, then do `calls`, which may return a text on what they hold.

    `left_out_by` tells, for a module that one can do without, the flag that leaves it out.
    """

    key: str
    folder: str
    model: str
    checkpoint: str
    modules: list[str]
    left_out_by: dict[str, str] = {}
    calls: list[Order]
    circumstances: Circumstances
    time_limit_s: float
    """How long it waits for somebody to take a process, again after each."""
    foreground: bool = False
    log: LogSettings


def prepare(order: WarmOrder, say: Callable[[str], None]) -> tuple[LoadedFiles, str]:
    """Import and call what was ordered.

    Raises StartupError if a module cannot be imported, RuntimeError if a thread is left, which no fork survives.
    """
    missed = MissedImports()
    sys.meta_path.append(missed)
    say("importing torch and the engine")
    with without_collections():
        for name in order.modules:
            _import(name, left_out_by=order.left_out_by.get(name))
    holds = []
    for call in order.calls:
        module, _, name = call.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        say(name.replace("_", " "))
        holds.append(function(call.payload))
    sys.meta_path.remove(missed)
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise RuntimeError(f"what was prepared left {threads} threads, which no fork survives")
    files = LoadedFiles(missed.names)
    if changed := files.changed_while_loading():
        raise RuntimeError(f"{', '.join(shorten(changed))} changed while it was imported; start again")
    return files, ", ".join(filter(None, holds))


def _import(name: str, *, left_out_by: str | None) -> None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        otherwise = f", or leave it out with {left_out_by}" if left_out_by else ""
        raise StartupError(
            f"{name} cannot be imported ({error_text(error)}); install its package again{otherwise}"
        ) from error


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(socket.SOMAXCONN)
    return listener


def _become_child(work: Work) -> int:
    """Be what a fresh child is, whatever becomes of the parent or of its terminal."""
    name, (channel, lifeline, stdout, stderr) = work
    os.setsid()
    set_process_title(f"graftlm {name} (of a warm parent)")
    for descriptor, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    importlib.invalidate_caches()
    if (generator := sys.modules.get("numpy.random")) is not None:
        generator.seed()  # two children of one parent do not draw the same numbers
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    return run_child(Channel(socket.socket(fileno=channel)), lifeline)


def run(order: WarmOrder, launcher: Channel, launcher_socket: socket.socket) -> int:
    folder = Path(order.folder)
    record = Record(
        key=order.key, pid=os.getpid(), started=started_of(os.getpid()), model=order.model,
        checkpoint=order.checkpoint, since=time.time(), pid_space=pid_space(),
    )  # fmt: skip

    def forget(number: int = 0, frame: FrameType | None = None) -> None:
        remove_record(folder, record)
        if number:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in SIGNALS:  # until the lender has its own handlers
        signal.signal(number, forget)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        write_record(folder, record)
        with ending_when_unwanted(launcher_socket, on_end=forget):
            files, holds = prepare(order, launcher.status)
        os.chdir("/")
        lender = Lender(
            _listen(socket_path(folder, order.key)),
            circumstances=order.circumstances,
            files=files,
            holds=holds,
            time_limit_s=order.time_limit_s,
            launcher=launcher if order.foreground else None,
            lost=lambda: lost(folder, record),
        )
        record.ready = True
        write_record(folder, record)
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every shared page
        launcher.ready(holds.encode())
        if not order.foreground:
            launcher.close()
        work = lender.serve()
    except BaseException as error:
        remove_record(folder, record)
        launcher.failed(Failure.of(error))
        if is_expected(error):  # the launcher tells
            return 1
        raise
    if work is None:
        remove_record(folder, record)
        return 0
    return _become_child(work)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m graftlm.processes.warm.parent")
    parser.add_argument("--launcher", type=int, required=True)
    options = parser.parse_args(arguments)
    os.set_inheritable(options.launcher, False)
    launcher_socket = socket.socket(fileno=options.launcher)
    launcher = Channel(launcher_socket)
    frame = launcher.recv_frame()
    if frame is None or frame[0] is not FrameKind.DATA:
        return 1
    order = msgspec.msgpack.decode(frame[1], type=WarmOrder)
    configure_logging(order.log.levels, order.log.fmt, "warm parent")
    with contextlib.suppress(BrokenPipeError):
        return run(order, launcher, launcher_socket)
    return 1


if __name__ == "__main__":
    from graftlm.processes.warm.parent import main as main_

    sys.exit(main_())
