"""Takes the engine's processes from a warm parent of `graftlm preload` where one fits, else says why it does not.

It does not know what a parent holds: a child decides by itself whether the weights there are its own.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from graftlm.engine.core_child import NAME, core_computes, prestart, take_ahead
from graftlm.processes.launch import Handle
from graftlm.processes.startup_trace import span
from graftlm.processes.threads import thread_environment
from graftlm.processes.warm.circumstances import Circumstances, circumstances
from graftlm.processes.warm.client import NotTaken, WarmParentAddress, find_warm_parents
from graftlm.processes.warm.place import Record

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig

logger = logging.getLogger(__name__)

_fitting: list[WarmParentAddress] = []


def find_fitting(start_method: str = "spawn") -> bool:
    """Look for warm parents whose forks would be what fresh children are; tells why each of the others is not."""
    _fitting.clear()
    parents = find_warm_parents(
        on_problem=lambda text: logger.warning("warm parents are not used: %s", text), on_dead=_say_dead
    )
    if not parents:
        return False
    now = _circumstances()
    for parent in parents:
        try:
            if start_method != "spawn":
                raise NotTaken([f"--start-method={start_method} was asked for"])
            if not parent.record.ready:
                raise NotTaken(["it is not ready yet"])
            with span("ask a warm parent"):
                parent.check(now)
        except NotTaken as error:
            _say_cold(parent, error)
        else:
            _fitting.append(parent)
    return bool(_fitting)


def start_warm(config: EngineConfig) -> bool:
    """Start the engine's processes, empty, from a parent that `find_fitting` found; False when none gave one.

    A parent of this checkpoint comes first, since it may hold the weights; any other has torch and the kernels.
    """
    checkpoint = os.path.realpath(config.model.path)
    parents = sorted(_fitting, key=lambda p: p.record.checkpoint != checkpoint)
    _fitting.clear()
    parallel = config.parallel
    for parent in parents:
        if not core_computes(parallel.distributed_executor_backend, parallel.world_size):
            prestart(
                num_workers=parallel.world_size,
                executor_backend=parallel.distributed_executor_backend,
                threads_per_worker=parallel.threads_per_worker,
                warm_parent=str(parent.socket),
            )
            logger.info("workers start warm parent=%d model=%s", parent.record.pid, parent.record.model)
            return True
        try:
            with span("take a process from a warm parent"):
                take_ahead(config, lambda *ends, parent=parent: _fork(parent, *ends))
        except NotTaken as error:
            _say_cold(parent, error)
        else:
            logger.info("engine core starts warm parent=%d model=%s", parent.record.pid, parent.record.model)
            return True
    return False


def _fork(parent: WarmParentAddress, channel: int, lifeline: int) -> Handle:
    return parent.fork(channel, lifeline, name=NAME, now=_circumstances())


def _circumstances() -> Circumstances:
    return circumstances({**os.environ, **thread_environment()})


def _say_dead(record: Record) -> None:
    logger.info(
        "the warm parent %d of %s has been killed; start another with `graftlm preload %s`",
        record.pid, record.model, record.model,
    )  # fmt: skip


def _say_cold(parent: WarmParentAddress, reason: NotTaken) -> None:
    logger.info(
        "starts cold, the warm parent %d of %s does not fit: %s; renew it with `graftlm preload %s`",
        parent.record.pid, parent.record.model, reason, parent.record.model,
    )  # fmt: skip
