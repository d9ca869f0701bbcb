"""Warm parents for tests that hold a module or two instead of torch, and so are there in a tenth of a second."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graftlm.processes.child import Order
from graftlm.processes.launch import ChildProcess, start_child
from graftlm.processes.liveness import is_running
from graftlm.processes.logs import LogSettings
from graftlm.processes.threads import thread_environment
from graftlm.processes.warm import client
from graftlm.processes.warm.circumstances import Circumstances, circumstances
from graftlm.processes.warm.client import WarmParentAddress, find_warm_parents
from graftlm.processes.warm.parent import WarmOrder
from graftlm.processes.warm.place import key_of
from graftlm.processes.warm.starting import start_warm_parent

#: Where the functions are that tests ask children to run.
FUNCTIONS = Path(__file__).parents[1] / "processes"


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a parent as long as a busy machine may hold it up."""
    monkeypatch.setattr(client, "_ANSWER_S", 60.0)
    monkeypatch.setattr(client, "_CODE_S", 60.0)


def now(**changes: str) -> Circumstances:
    """Those of a child that computes, as `serve` would start it."""
    return circumstances({**os.environ, **thread_environment(), **changes})


def with_path(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that finds modules in these folders, beside those it finds anyway."""
    path = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def order_for(
    folder: Path,
    *,
    modules: tuple[str, ...] = ("patient_parent",),
    calls: tuple[Order, ...] = (),
    time_limit_s: float = 600,
    model: str = "light",
) -> WarmOrder:
    return WarmOrder(
        key=key_of(model), folder=str(folder), model=model, checkpoint=model, modules=list(modules),
        calls=list(calls), circumstances=now(), time_limit_s=time_limit_s, log=LogSettings(levels=["info"]),
    )  # fmt: skip


@contextlib.contextmanager
def light_parent(order: WarmOrder, *, folders: tuple[Path, ...] = ()) -> Iterator[WarmParentAddress]:
    """A parent that is ready; it is ended with the block, if it still runs."""
    launched = start_warm_parent(order, environment=with_path(*folders, FUNCTIONS))
    try:
        launched.wait_ready(lambda text: None)
        (parent,) = [p for p in find_warm_parents() if p.record.key == order.key]
        yield parent
    finally:
        launched.let_go()
        launched.process.send_signal(signal.SIGKILL)
        launched.process.wait(60)


def take(
    parent: WarmParentAddress, name: str = "taken", circumstances: Circumstances | None = None
) -> ChildProcess:
    """Start a child that comes from the parent."""
    wanted = circumstances or now()
    return start_child(name, fork=lambda *ends: parent.fork(*ends, name=name, now=wanted))


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what} after {limit_s} s"
        time.sleep(0.01)


def num_files(parent: WarmParentAddress) -> int:
    """Count what it has open while it waits for somebody to ask."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nobody:
        nobody.connect(str(parent.socket))
        nobody.send(b"?")
        assert nobody.recv(1) == b"", "it closes its end"
    return len(list(Path(f"/proc/{parent.record.pid}/fd").iterdir()))


def end_parent(parent: WarmParentAddress) -> None:
    """Kill it, and wait until its launcher could have noticed."""
    os.kill(parent.record.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(parent.record.pid), "the end of the parent")
