"""Brings one worker up, in whatever process: hooks, class, device, model, block size; allocates nothing yet.

It does not know how many other workers there are, nor what the report is for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graftlm.contracts.errors import StartupError
from graftlm.contracts.executor import WorkerReport
from graftlm.contracts.points import WORKERS
from graftlm.ops.attention.unused_kernels import tell_unused_kernels
from graftlm.platforms.hooks import call_hook
from graftlm.plugins import calling, current_host, record
from graftlm.plugins.named import load_named, plugin_named
from graftlm.plugins.slow_calls import told_when_slow
from graftlm.processes.startup_trace import span

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.worker import Worker

logger = logging.getLogger(__name__)

_REQUIRED = (
    "init_device", "load_model", "update_block_size", "get_kv_cache_spec", "determine_available_memory",
    "initialize_kv_cache", "execute_step", "shutdown",
)  # fmt: skip


def start_worker(
    config: EngineConfig,
    *,
    rank: int,
    local_rank: int,
    distributed_init_method: str,
    on_status: Callable[[str], None],
) -> tuple[Worker, WorkerReport]:
    """Return a worker that has its model, and what it found out on the way."""
    call_hook("register_triton_kernel_overrides")
    with span("resolve the worker class"):
        cls = resolve_worker_class(config)
    with _blaming(cls):
        with told_when_slow():
            worker: Worker = cls(
                config, rank=rank, local_rank=local_rank, distributed_init_method=distributed_init_method
            )
        on_status("preparing the device")
        with span("prepare the device"), told_when_slow():
            worker.init_device()
        on_status("loading the model")
        begun = time.monotonic()
        with span("load the model"):
            worker.load_model()
        tell_unused_kernels()
        logger.info("model loaded rank=%d seconds=%.2f", rank, time.monotonic() - begun)
        report = WorkerReport(
            rank=rank,
            pid=os.getpid(),
            block_size=worker.update_block_size(),
            kv_cache_spec=worker.get_kv_cache_spec(),
            available_memory=worker.determine_available_memory(),
        )
    return worker, report


def _blaming(cls: type) -> contextlib.AbstractContextManager[None]:
    """Name the plugin that brought the worker class in any exception; ours needs no naming."""
    host, package = current_host(), cls.__module__.partition(".")[0]
    platform = host.platform_choice
    mine = [p for p in host.known_plugins if p.package == package]
    # Of a distribution with several plugins, the one that is the class, else the platform that it belongs to.
    itself = plugin_named(WORKERS, f"{cls.__module__}:{cls.__qualname__}")
    plugin = itself or next(
        (p for p in mine if platform is not None and p.label == platform.label), next(iter(mine), None)
    )
    if plugin is None or plugin.built_in:
        return contextlib.nullcontext()
    return calling(plugin, f"start of {cls.__name__}")


def resolve_worker_class(config: EngineConfig) -> Any:
    """Return the class that --worker-cls or the platform named; raises StartupError if it cannot be a worker."""
    named = config.parallel.worker_cls
    cls = load_named(WORKERS, named, what="--worker-cls")
    missing = [name for name in _REQUIRED if not callable(getattr(cls, name, None))]
    if not isinstance(cls, type) or missing:
        lacks = f"it has no {', '.join(missing)}" if missing else "it is not a class"
        raise StartupError(f"--worker-cls={named!r} cannot be a worker: {lacks}; subclass graftlm.worker.Worker")
    record("worker_class_resolved", worker_cls=named)
    logger.info("worker class resolved worker_cls=%s", named)
    return cls
