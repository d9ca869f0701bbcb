"""Starts the process of the engine core, if wished ahead of its plan, and the private directory of its socket.

It does not know what the two processes say to each other.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.executor.workers_ahead import IMPORT_AHEAD, WorkersAhead
from graftlm.processes.early import end_early
from graftlm.processes.exit_functions import at_exit
from graftlm.processes.launch import ChildProcess, Handle, start_child
from graftlm.processes.threads import quiet_environment, thread_environment

logger = logging.getLogger(__name__)

NAME = "engine core"

#: What the kernel takes for a Unix socket's path, less one for the closing zero.
MAX_SOCKET_PATH_BYTES = 107


@dataclasses.dataclass(frozen=True)
class CoreChild:
    """A started process that waits for its plan, and where to meet it."""

    child: ChildProcess

    @property
    def address(self) -> str:
        return f"ipc://{self.child.shared_directory}/core"

    def remove_directory(self) -> None:
        """Safe to call twice."""
        shutil.rmtree(self.child.shared_directory, ignore_errors=True)

    def stop(self, timeout_s: float = 1.5) -> None:
        """End the process, by force when `timeout_s` is over, and leave nothing behind."""
        self.child.stop(timeout_s)
        self.remove_directory()


@dataclasses.dataclass(frozen=True)
class _Wish:
    """What a process inherits from this one at its start, and what it is to prepare: all that a guess can miss."""

    start_method: Literal["spawn", "forkserver"]
    environment: Mapping[str, str]
    search_path: tuple[str, ...]
    directory: str
    worker_processes: int
    """How many workers get a process of their own; with none, the core computes itself."""
    threads_per_worker: int | None

    def differences(self, other: _Wish) -> list[str]:
        """Name what differs, variables of the environment one by one."""
        names = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(other, f.name)]
        if "environment" in names:
            names.remove("environment")
            ours, theirs = self.environment, other.environment
            names += sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
        return names


_ahead: tuple[_Wish, CoreChild] | None = None


def prestart(
    *,
    start_method: Literal["spawn", "forkserver"] = "spawn",
    num_workers: int = 1,
    executor_backend: str | None = None,
    threads_per_worker: int | None = None,
    warm_parent: str | None = None,
) -> None:
    """Start the core's process now, empty, and through it those of its workers; who computes imports torch.

    Workers with processes of their own come from `warm_parent`, the path of its socket, if there is one.

    None runs a plugin before the plan arrives, and all end at once when this process does. `ProcessEngineClient`
    takes them if the configuration turns out as guessed, and otherwise starts others. A fork server is warmed up
    instead: its children cost nothing then.
    """
    global _ahead
    if start_method == "forkserver":
        from graftlm.processes.forking import start_fork_server

        end_early()
        start_fork_server()
    elif _ahead is None:
        wish = _wish(start_method, num_workers, executor_backend, threads_per_worker)
        _ahead = (wish, _start(wish, ahead=True, warm_parent=warm_parent))
        at_exit(discard)


def take_ahead(config: EngineConfig, fork: Callable[[int, int], Handle]) -> None:
    """As `prestart` for a known configuration; the process comes from `fork`, with its imports behind it."""
    global _ahead
    discard()
    wish = _wish_of(config)
    _ahead = (wish, _start(wish, fork=fork))
    at_exit(discard)


def is_ahead() -> bool:
    """Tell whether a process has been started and not been taken."""
    return _ahead is not None


def discard() -> None:
    """End what was started ahead and not taken; safe to call at any time."""
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is not None:
        ahead[1].child.kill()
        ahead[1].stop(0)


def take_core_child(config: EngineConfig) -> CoreChild:
    """Return a process for the core of this configuration: the one started ahead, if it suits.

    One that has died meanwhile is not replaced: whoever waits for its READY is told why it died.
    """
    global _ahead
    wish = _wish_of(config)
    if _ahead is not None:
        guessed, core_child = _ahead
        differences = guessed.differences(wish)
        if not differences:
            _ahead = None
            return core_child
        logger.info("processes started ahead are replaced, they were made without: %s", ", ".join(differences))
        discard()
    return _start(wish)


def _wish_of(config: EngineConfig) -> _Wish:
    parallel = config.parallel
    return _wish(
        parallel.start_method,  # type: ignore[arg-type]
        parallel.world_size,
        parallel.distributed_executor_backend,
        parallel.threads_per_worker,
    )


def _wish(
    start_method: Literal["spawn", "forkserver"], num_workers: int, backend: str | None, threads: int | None
) -> _Wish:
    computes = core_computes(backend, num_workers)
    own = thread_environment(1, threads) if computes else quiet_environment()
    return _Wish(
        start_method=start_method,
        environment={**os.environ, **own},
        search_path=tuple(sys.path),
        directory=os.getcwd(),  # noqa: PTH109 - a string for the wire
        worker_processes=0 if computes else num_workers,
        threads_per_worker=threads,
    )


def core_computes(executor_backend: str | None, num_workers: int) -> bool:
    """Tell whether the core's process is the worker's too."""
    return executor_backend == "uni" or (executor_backend is None and num_workers == 1)


def _start(
    wish: _Wish,
    *,
    ahead: bool = False,
    warm_parent: str | None = None,
    fork: Callable[[int, int], Handle] | None = None,
) -> CoreChild:
    child = start_child(
        NAME, start_method=wish.start_method, env=wish.environment, make_directory=make_socket_directory, fork=fork,
        computes=not wish.worker_processes,
    )  # fmt: skip
    end_early()  # nobody else would take it
    if ahead and wish.worker_processes:
        order = WorkersAhead(
            num_workers=wish.worker_processes, threads_per_worker=wish.threads_per_worker, warm_parent=warm_parent
        )
        child.call("graftlm.executor.workers_ahead:prestart_workers", msgspec.msgpack.encode(order))
    elif ahead:
        child.call(IMPORT_AHEAD, msgspec.msgpack.encode(["graftlm.engine.core_process"]))
    logger.debug("engine core started pid=%d directory=%s", child.pid, child.shared_directory)
    return CoreChild(child)


def make_socket_directory() -> str:
    """Make a directory that only this user can enter, with a path short enough for a socket in it."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        # mkdtemp adds a slash and at most 16 characters to it, the socket's name five more.
        if len(os.fsencode(place)) + 24 <= MAX_SOCKET_PATH_BYTES and os.access(place, os.W_OK):
            return tempfile.mkdtemp(prefix="graftlm-", dir=place)
    raise StartupError(
        f"no place for a socket: {tempfile.gettempdir()!r} and '/tmp' cannot be written or are too long; "
        f"set TMPDIR to a writable directory of at most {MAX_SOCKET_PATH_BYTES - 24} bytes"
    )
