"""Runs the server from the bound port to the last closed connection; decides its exit code.

It does not know how the engine is started, nor what the routes do.

    bind → answer (503) → start the engine → ready → until a signal, or the engine's death → drain → close
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from graftlm.contracts.errors import EngineClosing, EngineDead
from graftlm.frontend.http.app import build_app
from graftlm.frontend.http.endpoint_plugins import attach_endpoint_plugins
from graftlm.frontend.http.listener import BACKLOG, bind, url_of
from graftlm.frontend.http.protocol import Protocol
from graftlm.frontend.http.state import ServerState

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.config.server_config import ServerConfig
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.processes.shutdown import ShutdownRequest

logger = logging.getLogger(__name__)

Start = Callable[[Callable[[str], None]], Awaitable["AsyncLLM"]]

#: How often the engine is asked whether it lives.
_HEARTBEAT_S = 0.25
#: What calls that were cut get to say so; what connections get to close; what the engine gets to end.
_LAST_WORDS_S = 1.0
_CLOSE_S = 1
_ENGINE_END_S = 4.0


def serve(
    server_config: ServerConfig,
    *,
    config: EngineConfig,
    start: Start,
    shutdown: ShutdownRequest,
    listener: socket.socket | None = None,
) -> int:
    """Serve until a shutdown is requested (returns 0) or the engine dies (returns 1, the cause logged last).

    Binds first, unless it gets a `listener`, which it closes: a port in use raises StartupError. What `start`
    raises is raised here, after everything is closed.
    """
    if listener is None:
        listener = bind(server_config)
        logger.info("listening url=%s", url_of(listener))
    with listener, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_Server(server_config, config, listener, shutdown).run(start))


class _Server:
    def __init__(
        self, server_config: ServerConfig, config: EngineConfig, listener: socket.socket, shutdown: ShutdownRequest
    ) -> None:
        self._state = ServerState(server_config, config)
        self._app = build_app(self._state)
        self._listener = listener
        self._shutdown = shutdown
        self._http = _QuietUvicorn(_uvicorn_config(self._app, server_config))
        self._stop = asyncio.Event()

    async def run(self, start: Start) -> int:
        loop = asyncio.get_running_loop()

        def on_shutdown() -> None:
            loop.call_soon_threadsafe(self._begin_to_close)

        self._shutdown.add_callback(on_shutdown)
        answering = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        try:
            llm = await self._start(start)
            cause = await self._watch(llm) if llm is not None else None
            cause = cause or await self._let_calls_end()
            await self._cut_calls(cause)
        finally:
            await self._close(answering)
            self._shutdown.remove_callback(on_shutdown)
        if cause is not None:
            logger.critical("engine_died %s", cause)
            return 1
        logger.info("stopped reason=%s", self._shutdown.signal_name or "request")
        return 0

    def _begin_to_close(self) -> None:
        self._state.set_closing()
        self._stop.set()

    async def _start(self, start: Start) -> AsyncLLM | None:
        """Start the engine; None when a shutdown came first."""
        starting = asyncio.ensure_future(self._make_ready(start))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting}, timeout=_ENGINE_END_S)
        if self._stop.is_set():
            if starting.done() and not starting.cancelled() and (error := starting.exception()) is not None:
                logger.debug("start_given_up error=%r", error)
            return None
        return starting.result()

    async def _make_ready(self, start: Start) -> AsyncLLM:
        state = self._state
        llm = await start(state.set_status)
        state.llm = llm
        host = llm.host
        if host is not None:
            await attach_endpoint_plugins(self._app, state, llm=llm, host=host)
            if not host.frozen:
                host.freeze()
        llm.add_stats_listener(state.metrics.record)
        state.metrics.set_engine(llm)
        gc.collect()
        gc.freeze()  # what lives now lives as long as the server: later collections need not look at it
        gc.enable()  # the command may have turned them off for its start
        if not self._stop.is_set():
            state.set_ready(llm)
            logger.info("ready url=%s model=%s", url_of(self._listener), ",".join(state.served_names))
        return llm

    async def _watch(self, llm: AsyncLLM) -> str | None:
        """Wait for the shutdown (None) or the engine's death (its cause)."""
        while not self._stop.is_set():
            if (cause := llm.client.dead) is not None:
                return cause
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _HEARTBEAT_S)
        return None

    async def _let_calls_end(self) -> str | None:
        """Give calls in progress the time they may take; returns the cause if the engine dies on them."""
        grace_s = self._state.server_config.shutdown_timeout
        logger.info("closing running=%d grace_s=%g", len(self._state.flights), grace_s)
        deadline = asyncio.get_running_loop().time() + grace_s
        while (remaining := deadline - asyncio.get_running_loop().time()) > 0:
            if (llm := self._state.llm) is None or llm.client.dead is not None:
                break
            if await self._state.flights.wait_until_none(min(remaining, _HEARTBEAT_S)):
                break
        return self._state.llm.client.dead if self._state.llm is not None else None

    async def _cut_calls(self, cause: str | None) -> None:
        """End the calls that are left: the engine died of `cause`, or there is no more time."""
        flights = self._state.flights
        if cause is not None:
            self._state.set_dead(cause)
            await flights.wait_until_none(_LAST_WORDS_S)  # their streams tell them, some have to write it yet
            flights.cut(EngineDead(cause))
        else:
            flights.cut(EngineClosing("the server is shutting down"))
        await flights.wait_until_none(_LAST_WORDS_S)

    async def _close(self, answering: asyncio.Task[None]) -> None:
        """End the engine and the connections, neither waiting for the other."""
        self._state.set_closing()
        self._http.should_exit = True
        await asyncio.gather(self._end_engine(), self._end_answering(answering))

    async def _end_engine(self) -> None:
        if (llm := self._state.llm) is None:
            return
        try:
            await asyncio.wait_for(llm.shutdown(), _ENGINE_END_S)
        except TimeoutError:
            logger.error("engine_shutdown_slow waited_s=%g", _ENGINE_END_S)
        except Exception:
            logger.exception("engine_shutdown_failed")

    async def _end_answering(self, answering: asyncio.Task[None]) -> None:
        try:
            await answering
        except Exception:
            logger.exception("http_server_failed")


class _QuietUvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: the shutdown is decided elsewhere, once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: FastAPI, server_config: ServerConfig) -> uvicorn.Config:
    lifecycle = logging.getLogger("uvicorn.error")
    if lifecycle.level == logging.NOTSET:
        lifecycle.setLevel(logging.WARNING)  # its start and end are told here
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="auto",
        ws_max_size=server_config.max_request_bytes,
        lifespan="off",
        log_config=None,
        backlog=BACKLOG,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=_CLOSE_S,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on this operating system
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
