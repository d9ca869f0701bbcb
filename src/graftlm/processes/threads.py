"""How many compute threads a process may start, as environment variables set before numpy and torch are imported.

It does not know what the threads compute.
"""

from __future__ import annotations

import math
import os
import sys

_CPU_MAX = "/sys/fs/cgroup/cpu.max"


def usable_cores() -> int:
    """Count the cores this process may use: its affinity mask, cut to the container's share."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _container_share() or cores))


def _container_share() -> int | None:
    try:
        with open(_CPU_MAX) as file:  # noqa: PTH123 - pathlib is imported later
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else math.ceil(int(quota) / int(period))


def threads_of_worker(num_workers: int, threads_per_worker: int | None = None) -> int:
    """Divide the usable cores among the workers; what the user asked for wins."""
    if threads_per_worker is not None:
        return threads_per_worker
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) > 0 else max(1, usable_cores() // num_workers)


def crowding(num_workers: int, threads_per_worker: int | None = None) -> str | None:
    """Say that the workers' threads are more than the cores they may use, and the cure; None where they are not."""
    threads, cores = threads_of_worker(num_workers, threads_per_worker), usable_cores()
    if num_workers * threads <= cores:
        return None
    if num_workers > cores:
        cure = f"use --tensor-parallel-size={cores} or less"
    elif threads_per_worker is not None:
        cure = f"leave --threads-per-worker out, or use {cores // num_workers} or less"
    else:
        cure = f"set OMP_NUM_THREADS to {cores // num_workers} or less, or unset it"
    from graftlm.plugins.spelling import counted  # the earliest modules of a start import this one

    workers, usable = counted(num_workers, "worker"), counted(cores, "usable core")
    return f"{workers} with {threads} compute threads each, on {usable}, wait for each other: {cure}"


def thread_environment(num_workers: int = 1, threads_per_worker: int | None = None) -> dict[str, str]:
    """Return the variables for a process that is one of `num_workers` workers on this machine."""
    return {
        "OMP_NUM_THREADS": str(threads_of_worker(num_workers, threads_per_worker)),
        "OMP_WAIT_POLICY": "passive",  # a thread that spins takes the core of another worker
        **_QUIET,
    }


def quiet_environment() -> dict[str, str]:
    """Return the variables for a process that computes nothing but may start workers.

    OMP_NUM_THREADS stays as the user set it, since the workers' count is taken from it.
    """
    return dict(_QUIET)


def settle_this_process() -> None:
    """Set, in a program's own process that will compute, what the user left unset; torch reads it at its import.

    The number of threads is left to the worker, which tells torch. Once torch is imported it is too late for the
    rest, and nothing is changed.
    """
    if "torch" not in sys.modules:
        for name, value in {"OMP_WAIT_POLICY": "passive", **_QUIET}.items():
            os.environ.setdefault(name, value)


_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy only reads files here, its pool would idle in every process
    "TOKENIZERS_PARALLELISM": "false",
}
