"""Starts the process of the engine core, if wished ahead of its plan, and the private directory of its socket.

It does not know what the two processes say to each other.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Literal

import msgspec

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.processes.launch import ChildProcess, start_child
from graftlm.processes.threads import quiet_environment, thread_environment

logger = logging.getLogger(__name__)

NAME = "engine core"

#: What the kernel takes for a Unix socket's path, less one for the closing zero.
MAX_SOCKET_PATH_BYTES = 107


@dataclasses.dataclass(frozen=True)
class CoreChild:
    """A started process that waits for its plan, and where to meet it."""

    child: ChildProcess
    directory: str

    @property
    def address(self) -> str:
        return f"ipc://{self.directory}/core"

    def remove_directory(self) -> None:
        """Safe to call twice."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self, timeout_s: float = 1.5) -> None:
        """End the process, by force when `timeout_s` is over, and leave nothing behind."""
        self.child.stop(timeout_s)
        self.remove_directory()


@dataclasses.dataclass(frozen=True)
class _Wish:
    start_method: Literal["spawn", "forkserver"]
    environment: Mapping[str, str]


_ahead: tuple[_Wish, CoreChild] | None = None


def prestart(
    *,
    start_method: Literal["spawn", "forkserver"] = "spawn",
    num_workers: int = 1,
    threads_per_worker: int | None = None,
) -> None:
    """Start the core's process now, empty; with one worker it imports torch while the start goes on.

    It runs no plugin before the plan arrives, and ends at once when this process does. `ProcessEngineClient` takes
    it if the configuration turns out as guessed, and otherwise starts another.
    """
    global _ahead
    if _ahead is None:
        wish = _Wish(start_method, _environment(num_workers == 1, threads_per_worker))
        _ahead = (wish, _start(wish, preload=["torch"] if num_workers == 1 else []))


def take_core_child(config: EngineConfig) -> CoreChild:
    """Return a process for the core of this configuration: the one started ahead, if it suits."""
    global _ahead
    parallel = config.parallel
    has_worker = parallel.distributed_executor_backend == "uni" or (
        parallel.distributed_executor_backend is None and parallel.world_size == 1
    )
    wish = _Wish(
        parallel.start_method,  # type: ignore[arg-type]
        _environment(has_worker, parallel.threads_per_worker),
    )
    ahead, _ahead = _ahead, None
    if ahead is not None:
        guessed, core_child = ahead
        if guessed == wish and core_child.child.exit_code() is None:
            return core_child
        logger.debug("process started ahead does not suit guessed=%s wished=%s", guessed, wish)
        core_child.stop(0)
    return _start(wish, preload=[])


def _environment(has_worker: bool, threads_per_worker: int | None) -> dict[str, str]:
    return thread_environment(1, threads_per_worker) if has_worker else quiet_environment()


def _start(wish: _Wish, *, preload: list[str]) -> CoreChild:
    directory = make_socket_directory()
    try:
        child = start_child(NAME, start_method=wish.start_method, env=wish.environment, shared_directory=directory)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if preload:
        child.call("graftlm.processes.child:import_modules", msgspec.msgpack.encode(preload))
    logger.debug("engine core started pid=%d directory=%s", child.pid, directory)
    return CoreChild(child, directory)


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
