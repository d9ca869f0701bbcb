"""The executor of one process per rank on this machine: broadcasts each step and notices every death at once.

It does not know what a worker computes; ranks meet each other without it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import selectors
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from graftlm.contracts.errors import EngineDead, StartupError
from graftlm.contracts.executor import Executor, WorkerReport
from graftlm.executor.messages import (
    Command,
    ExecuteStep,
    InitializeKVCache,
    Leave,
    WorkerStart,
    decode_result,
    encode,
)
from graftlm.executor.rendezvous import Rendezvous
from graftlm.executor.workers_ahead import take_worker, worker_name
from graftlm.platforms.bootstrap import child_payload
from graftlm.plugins import current_host, record
from graftlm.processes.failure import ChildFailed
from graftlm.processes.launch import ChildProcess, start_child, wait_all_ready
from graftlm.processes.startup_trace import span
from graftlm.processes.threads import thread_environment

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.step import StepPlan, StepResult

logger = logging.getLogger(__name__)

#: How long workers may take to leave in order.
_LEAVE_S = 1.0

#: How long after an exception in one worker the death of another may show, which is then the true cause.
_ROOT_CAUSE_S = 0.25


class MultiprocessExecutor(Executor):
    """Starts all workers before it waits for any, and treats the failure of one as the end of all."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._workers: list[ChildProcess] = []
        self._rendezvous = Rendezvous()
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._in_call = threading.Lock()
        self._told = False
        self._on_failure: Callable[[str], None] = lambda cause: None

    def start(self, *, on_failure: Callable[[str], None], on_status: Callable[[str], None]) -> list[WorkerReport]:
        self._on_failure = on_failure
        try:
            for rank in range(self.config.parallel.world_size):
                self._workers.append(self._start_worker(rank))
            with span("wait for the workers"):
                answers = wait_all_ready(self._workers, on_status=on_status)
        except ChildFailed as failure:
            cause = self._root_cause(failure)
            self._kill()
            raise StartupError(cause) from None
        except BaseException:
            self._kill()
            raise
        for worker in self._workers:
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            worker.add_exit_callback(functools.partial(self._worker_gone, worker))
        return [msgspec.msgpack.decode(answer, type=WorkerReport) for answer in answers]

    def _start_worker(self, rank: int) -> ChildProcess:
        parallel = self.config.parallel
        name = worker_name(rank)
        own = thread_environment(parallel.world_size, parallel.threads_per_worker)
        child = take_worker(rank, own) or start_child(
            name,
            start_method=parallel.start_method,  # type: ignore[arg-type]
            env=own,
            computes=True,
        )
        plan = child_payload(current_host(), role="worker", process=name)
        record("plan_sent", process=name)  # before what the worker records of it
        child.call("graftlm.platforms.bootstrap:apply_plan_in_child", plan)
        start = WorkerStart(
            config=self.config.to_bytes(),
            rank=rank,
            local_rank=rank,
            distributed_init_method=self._rendezvous.init_method,
        )
        child.run("graftlm.executor.worker_process:main", encode(start))
        logger.debug("worker started rank=%d pid=%d", rank, child.pid)
        return child

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self._broadcast(InitializeKVCache(num_blocks))

    def execute_step(self, plan: StepPlan) -> StepResult:
        result = decode_result(self._broadcast(ExecuteStep(plan)))
        assert result is not None, "rank 0 returns a result"
        return result

    def _broadcast(self, command: Command) -> bytes:
        """Send a command to all workers, wait for all answers, and return that of rank 0."""
        message = encode(command)
        answers: dict[str, bytes] = {}
        with self._in_call:
            try:
                for worker in self._workers:
                    worker.send(message)
                while len(answers) < len(self._workers):
                    for key, _ in self._selector.select():
                        worker = key.data
                        answers[worker.name] = worker.receive()
            except ChildFailed as failure:
                self._told = True  # the exception tells, on_failure need not
                raise EngineDead(self._root_cause(failure)) from None
        return answers[self._workers[0].name]

    def _root_cause(self, failure: ChildFailed) -> str:
        """Prefer the worker that was killed to the one that then missed it in a collective."""
        deadline = time.monotonic() + _ROOT_CAUSE_S
        while failure.traceback and time.monotonic() < deadline:
            for worker in self._workers:
                if (worker.exit_code() or 0) < 0:
                    return f"{worker.name}: {worker.describe_death()}"
            time.sleep(0.01)
        if failure.traceback:
            logger.error("worker failed name=%s\n%s", failure.name, failure.traceback.rstrip())
        return failure.cause

    def _worker_gone(self, worker: ChildProcess) -> None:
        with self._in_call, self._lock:  # a call sees the death itself, and knows more of it
            told, self._told = self._told, True
        if not told:
            self._on_failure(f"{worker.name}: {worker.describe_death()}")

    def shutdown(self) -> None:
        with self._lock:
            failed, self._told = self._told, True
        if failed:  # a rank may wait for a dead one in a collective for ever
            self._kill()
            return
        for worker in self._workers:
            with contextlib.suppress(ChildFailed):
                worker.send(encode(Leave()))
        deadline = time.monotonic() + _LEAVE_S
        for worker in self._workers:
            worker.exit_code(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        """End what still lives; safe to call twice."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.stop()
        self._workers = []
        self._selector.close()
        self._rendezvous.close()
