"""The process of the engine core: it comes up, says READY, then turns as long as there is work.

It does not know HTTP or text. An earlier order of the front end has applied the plan, so plugins are there before
the config is decoded.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from graftlm.config import environment
from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineDead
from graftlm.engine.core import EngineCore, build_core
from graftlm.engine.core_child import NAME
from graftlm.engine.messages import (
    AbortRequests,
    AddRequest,
    CallUtility,
    CoreStart,
    Hello,
    Outputs,
    Shutdown,
    ToFrontEnd,
    UtilityAnswer,
    decode_to_core,
    encode,
)
from graftlm.executor.timed_worker import time_executor
from graftlm.plugins import current_host
from graftlm.plugins.call_times import record_call_times
from graftlm.processes import startup_trace
from graftlm.processes.channel import Channel
from graftlm.processes.child import EXIT_FAILED, end_orphaned, on_parent_gone
from graftlm.processes.failure import Failure

logger = logging.getLogger(__name__)


def main(payload: bytes, channel: Channel) -> int:
    """Run the engine core; an exception travels to the front end as a failure and ends the process."""
    start = msgspec.msgpack.decode(payload, type=CoreStart)
    interruption = Interruption()
    on_parent_gone(interruption.leave)
    with FrontEndSocket(start.address) as socket:
        socket.send(Hello())
        core = build_core(
            EngineConfig.from_bytes(start.config), on_failure=interruption.fail, on_status=channel.status
        )
        interruption.serving = True
        if core.config.observability.time_plugin_calls:
            time_executor(core.executor)
        try:
            channel.ready(msgspec.msgpack.encode(_report(core)))
            gc.collect()
            gc.freeze()  # what lives now lives for ever: no collection in a step looks at it again
            CoreLoop(core, socket, interruption).run()
        except Exception as error:
            channel.failed(Failure.of(error))  # before anything that may take time
            return EXIT_FAILED
        finally:
            core.shutdown()
            record_call_times()
    return 0


def _report(core: EngineCore) -> EngineReady:
    """Freeze what must not change from now on, and tell what was decided."""
    environment.freeze()
    host = current_host()
    host.freeze()
    assert core.config.model.max_model_len is not None, "the configuration is resolved"
    workers = {f"worker {r.rank}": r.pid for r in core.reports if r.pid != os.getpid()}
    return EngineReady(
        num_blocks=core.num_blocks,
        block_size=core.reports[0].block_size,
        max_model_len=core.config.model.max_model_len,
        vocab_size=int(core.config.model.hf_config.get("vocab_size") or 0),
        pids={NAME: os.getpid(), **workers},
        ledgers=[host.ledger_bytes(), *(r.ledger for r in core.reports if r.ledger)],
        startup_traces=[t for t in (startup_trace.end_as_bytes(), *(r.startup_trace for r in core.reports)) if t],
    )


class FrontEndSocket:
    """The core's end of the socket; sending never blocks, what the front end has not read yet is kept."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.set_hwm(0)
        self.socket.connect(address)

    def __enter__(self) -> FrontEndSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.destroy(linger=0)

    def send(self, message: ToFrontEnd) -> None:
        # Again means that the front end is gone, which its pipe tells us.
        with contextlib.suppress(zmq.Again):
            self.socket.send(encode(message), zmq.NOBLOCK)

    def receive(self) -> bytes | None:
        """Return a message that is there, or None."""
        try:
            message: bytes = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return message


class Interruption:
    """Wakes the loop from any thread: the front end is gone, or a worker is."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.serving = False
        self.leaving = False
        self.cause: str | None = None

    def leave(self) -> None:
        """The front end is gone. While workers still start there is nothing to end in order: they notice too."""
        if not self.serving:
            end_orphaned()
        self.leaving = True
        os.write(self._writer, b"x")

    def fail(self, cause: str) -> None:
        self.cause = cause
        os.write(self._writer, b"x")


class CoreLoop:
    """Takes in what the front end says, and steps while there is work."""

    def __init__(self, core: EngineCore, socket: FrontEndSocket, interruption: Interruption) -> None:
        self._core = core
        self._socket = socket
        self._interruption = interruption
        self._leaving = False
        self._poller = zmq.Poller()
        self._poller.register(socket.socket, zmq.POLLIN)
        self._poller.register(interruption.reader, zmq.POLLIN)
        self._utilities: dict[str, Callable[[], Any]] = {
            "ping": os.getpid,
            "num_free_blocks": lambda: getattr(self._core.scheduler, "num_free_blocks", None),
            "ledger": lambda: current_host().ledger_bytes(),
        }

    def run(self) -> None:
        """Turn until the front end says Shutdown or is gone; raises EngineDead when a worker is."""
        while True:
            if not self._core.has_work:
                self._poller.poll()
            self._take_messages()
            if self._interruption.cause is not None:
                raise EngineDead(self._interruption.cause)
            if self._leaving or self._interruption.leaving:
                return
            if self._core.has_work:
                self._socket.send(Outputs(self._core.step()))

    def _take_messages(self) -> None:
        while (data := self._socket.receive()) is not None:
            match decode_to_core(data):
                case AddRequest(request):
                    self._core.add_request(request)
                case AbortRequests(request_ids):
                    self._core.abort(request_ids)
                case CallUtility(call_id, name):
                    self._socket.send(self._answer(call_id, name))
                case Shutdown():
                    self._leaving = True

    def _answer(self, call_id: int, name: str) -> UtilityAnswer:
        utility = self._utilities.get(name)
        if utility is None:
            return UtilityAnswer(call_id, error=f"unknown utility {name!r}; there are {sorted(self._utilities)}")
        try:
            return UtilityAnswer(call_id, value=utility())
        except Exception as error:  # the asker hears it; the engine goes on
            logger.exception("utility failed name=%s", name)
            return UtilityAnswer(call_id, error=Failure.of(error).cause)
