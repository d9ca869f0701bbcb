"""The front end's hold on an engine core in a process of its own: requests out, streams of updates in.

Everything runs on the event loop that called `start`. It does not know text, nor what a core does with a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineClosing, EngineDead, GraftlmError, StartupError
from graftlm.engine.core_child import NAME, CoreChild, prestart, take_core_child
from graftlm.engine.core_socket import CoreSocket
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
    encode,
)
from graftlm.engine.streams import Answers, Streams
from graftlm.platforms.bootstrap import child_payload
from graftlm.plugins import record
from graftlm.plugins.call_times import time_listener
from graftlm.processes.channel import FrameKind
from graftlm.processes.failure import ChildFailed, Failure
from graftlm.processes.liveness import see_gone

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.request import EngineRequest, RequestUpdate
    from graftlm.contracts.stats import StepStats
    from graftlm.plugins.host import PluginHost

__all__ = ["ProcessEngineClient", "prestart"]

logger = logging.getLogger(__name__)

#: What a core that was told to leave, or lost its parent's pipe, may take.
_LEAVE_S = 1.5
#: What workers may take to notice that their core is gone.
_WORKERS_GONE_S = 2.0


class ProcessEngineClient:
    """Implements `EngineClient`. Its death is told to every waiter at once; `shutdown` leaves nothing running."""

    def __init__(
        self, config: EngineConfig, host: PluginHost, *, on_status: Callable[[str], None] | None = None
    ) -> None:
        self.config = config
        self.status = "not started"
        self._host = host
        self._on_status = on_status
        self._core: CoreChild | None = None
        self._socket: CoreSocket | None = None
        self._ready: EngineReady | None = None
        self._became_ready: asyncio.Future[bytes] | None = None
        self._said_ready: bytes | None = None
        self._is_connected = False
        self._pids: dict[str, int] = {}
        self._dead: str | None = None
        self._closing = False
        self._gone = asyncio.Event()
        self._closed = asyncio.Event()
        self._streams = Streams()
        self._answers = Answers()
        self._step_listeners: list[Callable[[StepStats], None]] = []
        self._death_listeners: list[Callable[[str], None]] = []

    @property
    def ready(self) -> EngineReady | None:
        return self._ready

    @property
    def dead(self) -> str | None:
        return self._dead

    @property
    def is_started(self) -> bool:
        """Whether `start` was called; `shutdown` ends it all then."""
        return self._became_ready is not None

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the engine that are known, by name."""
        return dict(self._pids)

    def begin(self) -> None:
        """Start the processes and give them their work, for which no event loop is needed; `start` goes on.

        Whoever does not call `start` after it calls `abandon`.
        """
        self._core = take_core_child(self.config)
        self._pids = {NAME: self._core.child.pid}
        self._socket = CoreSocket(self._core.address, on_message=self._on_message)
        child = self._core.child
        plan = child_payload(self._host, role="engine", process=NAME)
        record("plan_sent", process=NAME)  # before what the core records of it
        child.call("graftlm.platforms.bootstrap:apply_plan_in_child", plan)
        child.run(
            "graftlm.engine.core_process:main",
            encode(CoreStart(config=self.config.to_bytes(), address=self._core.address)),
        )

    def abandon(self) -> None:
        """End at once what `begin` started."""
        if self._core is not None:
            self._core.child.kill()
            self._core.stop(0)
        if self._socket is not None:
            self._socket.close()

    async def start(self, *, on_status: Callable[[str], None] | None = None) -> EngineReady:
        """Wait until the processes can serve, begun or not; raises StartupError with the cause.

        On failure, and when it is cancelled, `shutdown` has still to be called.
        """
        self._on_status = on_status or self._on_status
        loop = asyncio.get_running_loop()
        became_ready = self._became_ready = loop.create_future()
        if self._core is None:
            self.begin()
        assert self._core is not None
        assert self._socket is not None
        self._socket.attach(loop)
        child = self._core.child
        if not child.channel.has_message():  # else one that was begun is further by now, and says so next
            self._tell_status("starting the engine core")
        loop.add_reader(child.channel.fileno(), self._on_channel)
        loop.add_reader(child.sentinel, self._on_exit)
        ready = msgspec.msgpack.decode(await became_ready, type=EngineReady)
        self._pids = dict(ready.pids)
        for ledger in ready.ledgers:
            self._host.check_child(ledger)
        self._ready = ready
        self._tell_status("ready")
        logger.info(
            "engine ready num_blocks=%d block_size=%d max_model_len=%d pids=%s",
            ready.num_blocks, ready.block_size, ready.max_model_len, ready.pids,
        )  # fmt: skip
        return ready

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestUpdate, None]:
        """Submit a request and stream its updates; leaving the iteration aborts it.

        Raises EngineDead or EngineClosing at any moment.
        """
        request_id = request.request_id
        self._streams.check_free(request_id)
        self._send(AddRequest(request))
        stream = self._streams.open(request_id)
        finished = False
        try:
            while not finished:
                update = await stream.get()
                if isinstance(update, GraftlmError):
                    finished = True
                    raise update
                finished = update.finish_reason is not None
                yield update
        finally:
            self._streams.close(request_id)
            if not finished:
                await self.abort([request_id])

    async def abort(self, request_ids: list[str]) -> None:
        """End requests; their streams get a last update. Unknown ids, and a dead engine, are no error."""
        if self._dead is None and not self._closing:
            self._send(AbortRequests(request_ids))

    async def call_utility(self, name: str) -> Any:
        """Ask the core for a fact beside requests, such as "num_free_blocks"."""
        call_id, answer = self._answers.open()
        try:
            self._send(CallUtility(call_id, name))
            return await answer
        finally:
            self._answers.close(call_id)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        if self.config.observability.time_plugin_calls:
            listener = time_listener(listener, hook="EngineClient.on_step")
        self._step_listeners.append(listener)

    def on_death(self, listener: Callable[[str], None]) -> None:
        """Call `listener(cause)` on the event loop when the engine dies, at once if it has."""
        self._death_listeners.append(listener)
        if self._dead is not None:
            listener(self._dead)

    async def shutdown(self, timeout_s: float = _LEAVE_S) -> None:
        """End the engine's processes, by force after `timeout_s`; streams get EngineClosing. Safe to call twice."""
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        closing = EngineClosing("the server is shutting down")
        if self._became_ready is not None and not self._became_ready.done():
            self._became_ready.set_exception(closing)
        self._end_waiting(closing)
        try:
            if self._core is not None:
                await self._end_core(self._core, timeout_s)
        finally:
            if self._socket is not None:
                self._socket.close()
            self._closed.set()

    async def _end_core(self, core: CoreChild, timeout_s: float) -> None:
        if self._ready is not None and self._dead is None and self._socket is not None:
            self._socket.send(encode(Shutdown()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), timeout_s)
        self._stop_watching(core)
        await asyncio.to_thread(core.stop)
        workers = [pid for name, pid in self._pids.items() if name != NAME]
        await asyncio.to_thread(see_gone, workers, limit_s=_WORKERS_GONE_S)

    def _send(self, message: AddRequest | AbortRequests | CallUtility) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)
        if self._closing or self._socket is None:
            raise EngineClosing("the server is shutting down" if self._closing else "the engine is not started")
        self._socket.send(encode(message))

    def _on_message(self, message: ToFrontEnd) -> None:
        match message:
            case Outputs(outputs):
                self._streams.deliver(outputs.updates)
                if outputs.stats is not None:
                    self._tell_step(outputs.stats)
            case Hello():
                self._is_connected = True
                self._look_if_ready()
                if self._core is not None:  # both ends hold the socket now, its name has done its duty
                    self._core.remove_directory()
            case UtilityAnswer(call_id, value, error):
                self._answers.deliver(call_id, value, error)

    def _on_channel(self) -> bool:
        """Take one frame; False at the end."""
        assert self._core is not None
        frame = self._core.child.channel.recv_frame()
        match frame:
            case (FrameKind.STATUS, data):
                if not self._core.child.channel.has_message():  # else it is over: they waited while we imported
                    self._tell_status(data.decode())
            case (FrameKind.READY, data):
                self._said_ready = data
                self._look_if_ready()
            case (FrameKind.FAILED, data):
                failure = Failure.from_bytes(data)
                if failure.traceback:
                    logger.error("engine core failed\n%s", failure.traceback.rstrip())
                self._die(str(ChildFailed(NAME, failure)))
            case None:  # the sentinel tells how it ended
                asyncio.get_running_loop().remove_reader(self._core.child.channel.fileno())
        return frame is not None

    def _look_if_ready(self) -> None:
        """READY comes over another pipe, and may come first: what is sent before the sockets have met is lost."""
        waiter = self._became_ready
        if self._said_ready is not None and self._is_connected and waiter is not None and not waiter.done():
            waiter.set_result(self._said_ready)

    def _on_exit(self) -> None:
        assert self._core is not None
        while self._core.child.channel.has_message() and self._on_channel():
            pass  # a failure that it reported is a better cause than its exit code
        self._stop_watching(self._core)
        self._gone.set()
        self._die(f"{NAME}: {self._core.child.describe_death()}")

    def _stop_watching(self, core: CoreChild) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in (core.child.channel.fileno(), core.child.sentinel):
            if descriptor >= 0:
                loop.remove_reader(descriptor)

    def _die(self, cause: str) -> None:
        if self._dead is not None or self._closing:
            return
        self._dead = cause
        if self._became_ready is not None and not self._became_ready.done():
            self._became_ready.set_exception(StartupError(cause))
            return
        logger.error("engine dead cause=%s", cause)
        self._end_waiting(EngineDead(cause))
        for listener in self._death_listeners:
            listener(cause)

    def _end_waiting(self, error: GraftlmError) -> None:
        self._streams.end_all(error)
        self._answers.end_all(error)

    def _tell_status(self, status: str) -> None:
        self.status = status
        if self._on_status is not None:
            self._on_status(status)

    def _tell_step(self, stats: StepStats) -> None:
        for listener in self._step_listeners:
            try:
                listener(stats)
            except Exception:
                logger.exception("step listener failed listener=%r", listener)
