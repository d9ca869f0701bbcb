"""Hands the steps to the workers, wherever they live; it does not know why a step is what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graftlm.contracts.executor import Executor

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig

__all__ = ["Executor", "build_executor", "executor_class"]


def build_executor(config: EngineConfig) -> Executor:
    """Build the executor that --distributed-executor-backend names; unset, one rank needs no process of its own."""
    return executor_class(config)(config)


def executor_class(config: EngineConfig) -> type[Executor]:
    from graftlm.contracts.errors import StartupError
    from graftlm.plugins import record

    match config.parallel.distributed_executor_backend:
        case "uni" if config.parallel.world_size > 1:
            raise StartupError(
                f"--distributed-executor-backend='uni' has one worker, but --tensor-parallel-size="
                f"{config.parallel.tensor_parallel_size} needs more; use mp"
            )
        case None if config.parallel.world_size > 1:
            backend = "mp"
        case None:
            backend = "uni"
        case str(backend):
            pass
    record("executor_chosen", executor=backend)
    match backend:
        case "uni":
            from graftlm.executor.uni import UniExecutor

            return UniExecutor
        case "mp":
            from graftlm.executor.multiprocess import MultiprocessExecutor

            return MultiprocessExecutor
    return _plugin_class(backend)


def _plugin_class(backend: str) -> type[Executor]:
    from graftlm.contracts.points import EXECUTORS
    from graftlm.plugins.named import load_named

    cls = load_named(EXECUTORS, backend, what="--distributed-executor-backend")
    if not (isinstance(cls, type) and issubclass(cls, Executor)):
        from graftlm.contracts.errors import StartupError

        raise StartupError(
            f"--distributed-executor-backend={backend!r} is {cls!r}; it must subclass "
            "graftlm.contracts.executor.Executor"
        )
    return cls
