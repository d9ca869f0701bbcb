"""Workers' processes that are started before the plan is there, so that all of them import torch side by side.

Runs in the engine core's process. It does not know the configuration: what it started on a guess is taken only if
it would be started the same way now.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from graftlm.processes.launch import ChildProcess, start_child
from graftlm.processes.threads import thread_environment

logger = logging.getLogger(__name__)

#: What a process that computes does while it waits for its plan. The payload lists more modules to import.
IMPORT_AHEAD = "graftlm.executor.imports_ahead:import_ahead"


class WorkersAhead(msgspec.Struct, kw_only=True):
    """The order to start them."""

    num_workers: int
    threads_per_worker: int | None = None
    warm_parent: str | None = None
    """The socket of a parent to take them from."""


class _Inherited(msgspec.Struct, frozen=True):
    """What a process takes over from this one when it starts."""

    environment: dict[str, str]
    search_path: list[str]
    directory: str


_ahead: dict[str, tuple[_Inherited, ChildProcess]] = {}


def prestart_workers(payload: bytes) -> None:
    """Start the processes, empty; they run no plugin before their plan, and end when this process does."""
    order = msgspec.msgpack.decode(payload, type=WorkersAhead)
    own = thread_environment(order.num_workers, order.threads_per_worker)
    for rank in range(order.num_workers):
        name = worker_name(rank)
        child = _start(name, own, order.warm_parent)
        child.call(IMPORT_AHEAD, msgspec.msgpack.encode([]))
        _ahead[name] = (_inherited(own), child)


def _start(name: str, own: Mapping[str, str], warm_parent: str | None) -> ChildProcess:
    """Take a warm process if there is one to take, else start a fresh one."""
    if warm_parent is not None:
        from graftlm.processes.warm.circumstances import circumstances
        from graftlm.processes.warm.client import NotTaken, fork_warm_child

        now = circumstances({**os.environ, **own})
        try:
            return start_child(
                name, env=own, fork=lambda *ends: fork_warm_child(Path(warm_parent), *ends, name=name, now=now)
            )
        except NotTaken as error:
            logger.info("%s starts cold, the warm parent gave none: %s", name, error)
    return start_child(name, env=own, computes=True)


def take_worker(rank: int, own: Mapping[str, str]) -> ChildProcess | None:
    """Return the process started ahead for this rank if it inherited what a new one would, else None.

    One that has died meanwhile is not replaced: whoever waits for its READY is told why it died.
    """
    inherited, child = _ahead.pop(worker_name(rank), (None, None))
    if child is None:
        return None
    if inherited != _inherited(own):
        child.kill()
        child.stop(0)
        return None
    return child


def worker_name(rank: int) -> str:
    return f"worker {rank}"


def _inherited(own: Mapping[str, str]) -> _Inherited:
    return _Inherited({**os.environ, **own}, list(sys.path), os.getcwd())  # noqa: PTH109 - a string for the wire
