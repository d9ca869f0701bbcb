"""Chats with a model that is loaded here: an engine of one's own, started and ended with the command.

The engine's event loop runs only while an answer is made; between two answers the terminal has the word.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from graftlm.cli.ahead import start_configured_children
from graftlm.cli.chat import ChatSettings, Message
from graftlm.contracts.errors import StartupError
from graftlm.contracts.request import FinishReason
from graftlm.processes.shutdown import ShutdownInterrupt

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.plugins.host import PluginHost
    from graftlm.processes.shutdown import ShutdownRequest

T = TypeVar("T")


class EngineChat:
    """One chat with an engine; constructing it only configures, entering it starts the engine."""

    def __init__(
        self, config: EngineConfig, host: PluginHost, *, settings: ChatSettings, shutdown: ShutdownRequest
    ) -> None:
        from graftlm.engine.configure import configure

        self._config = configure(config, host)
        start_configured_children(self._config)
        self._host = host
        self._settings = settings
        self._shutdown = shutdown
        self._loop = asyncio.new_event_loop()
        self._llm: AsyncLLM | None = None
        self.cut_at = ""

    @property
    def model(self) -> str:
        return self._config.model.served_model_name[0]

    def __enter__(self) -> EngineChat:
        from graftlm.frontend.async_llm import start_async_llm

        with _Status() as status:
            self._llm = self._run(start_async_llm(self._config, self._host, on_status=status.show))
        return self

    def __exit__(self, *exception: object) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            self._loop.run_until_complete(llm.shutdown())
        self._loop.close()

    def stream(self, messages: Sequence[Message]) -> Iterator[str]:
        """Yield the pieces of the answer as the engine makes them."""
        assert self._llm is not None
        pieces = self._answer(self._llm, messages)
        try:
            while (piece := self._run(_next(pieces))) is not None:
                yield piece
        finally:
            self._loop.run_until_complete(pieces.aclose())

    async def _answer(self, llm: AsyncLLM, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        if llm.tokenizer is None:
            raise StartupError(f"the model {self.model!r} has no tokenizer; name one with --tokenizer")
        if llm.chat_template is None:  # a base model continues the text that it is given
            prompt = llm.encode(str(messages[-1]["content"]))
        else:
            prompt = llm.encode_chat(messages)
        assert self._config.model.max_model_len is not None, "the configuration is resolved"
        room = self._config.model.max_model_len - len(prompt)
        params = self._settings.sampling_params(room=room)
        self.cut_at = ""
        async with aclosing(llm.generate(prompt, params, request_id=f"run-{uuid.uuid4().hex}")) as updates:
            async for update in updates:
                if update.finish_reason == FinishReason.LENGTH:
                    self.cut_at = self._settings.limit(room=room)
                yield update.text

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop; a signal cancels it and ends the command."""
        task = self._loop.create_task(work)

        def cancel() -> None:
            self._loop.call_soon_threadsafe(task.cancel)

        self._shutdown.add_callback(cancel)
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise ShutdownInterrupt("cancelled") from None
        finally:
            self._shutdown.remove_callback(cancel)


async def _next(pieces: AsyncGenerator[str, None]) -> str | None:
    return await anext(pieces, None)


class _Status:
    """A line on a terminal that says what the start is busy with; silent elsewhere."""

    def __init__(self) -> None:
        self._status: Any = None

    def __enter__(self) -> _Status:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
