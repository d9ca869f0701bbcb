"""The engine as the front end uses it: prompts in, streams of text out, on one event loop.

It does not know HTTP, and not where the engine lives: any `EngineClient` will do.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from graftlm.contracts.errors import EngineClosing, EngineDead, GraftlmError, InvalidParameter
from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.sampling import SamplingParams
from graftlm.frontend.choice_stream import ChoiceStream, TextUpdate
from graftlm.frontend.request_builder import RequestBuilder
from graftlm.frontend.request_clock import RequestClock
from graftlm.frontend.stat_loggers import StatsHub, StatsListener, build_stats_hub
from graftlm.frontend.text_assets import TextAssets, load_text_assets
from graftlm.plugins.call_times import record_call_times

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.engine import EngineClient
    from graftlm.engine.client import ProcessEngineClient
    from graftlm.frontend.chat_template import ChatTemplate
    from graftlm.frontend.tokenizer import Tokenizer
    from graftlm.plugins.host import PluginHost

__all__ = ["AsyncLLM", "TextUpdate", "start_async_llm"]

logger = logging.getLogger(__name__)

_LONG_TEXT = 16_384
"""Characters above which encoding would hold the event loop for several milliseconds."""


class AsyncLLM:
    """One model, served. Everything runs on the loop that uses it; `config` is resolved and frozen."""

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient,
        *,
        host: PluginHost | None = None,
        assets: TextAssets | None = None,
        stats: StatsHub | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.host = host
        self.assets = assets if assets is not None else load_text_assets(config)
        self.stats = stats if stats is not None else StatsHub()
        ready = client.ready
        self.max_model_len = ready.max_model_len if ready is not None else int(config.model.max_model_len or 0)
        self._builder = RequestBuilder(
            max_model_len=self.max_model_len,
            vocab_size=config.model.vocab_size,
            seed=config.model.seed,
            eos_token_ids=self.assets.eos_token_ids,
            has_tokenizer=self.assets.tokenizer is not None,
        )
        self._running: dict[str, list[str]] = {}
        self._closing = False
        client.on_step(self.stats.record_step)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.assets.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.assets.chat_template

    @property
    def num_requests(self) -> int:
        """Calls of `generate` in progress."""
        return len(self._running)

    def unhealthy(self) -> str | None:
        """Tell why no request can be served, or None while all is well."""
        if self.client.dead is not None:
            return self.client.dead
        return "the server is shutting down" if self._closing else None

    def add_stats_listener(self, listener: StatsListener) -> None:
        """Call `listener(step, finished)` on the event loop with every step's and request's numbers."""
        self.stats.add_listener(listener)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; raises RequestError when the model carries no tokenizer."""
        return self.assets.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Return the ids of a conversation, for `generate`; raises RequestError without a chat template."""
        return self.assets.encode_chat(messages, add_generation_prompt=add_generation_prompt, **variables)

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
    ) -> AsyncGenerator[TextUpdate, None]:
        """Stream the choices of one request, mixed; each ends with an update that has a `finish_reason`.

        Raises RequestError before the first update, EngineClosing, and EngineDead at any moment. Leaving the
        iteration (close it) aborts what still runs.
        """
        self._check_open(request_id)
        clock = RequestClock(request_id, params)
        requests = await self._build(prompt, params, request_id=request_id, priority=priority)
        self._check_open(request_id)  # encoding may have taken a while
        self._running[request_id] = [request.request_id for request in requests]
        choices = [
            ChoiceStream(request, tokenizer=self.tokenizer, index=index) for index, request in enumerate(requests)
        ]
        stream = self._single(requests[0], choices[0]) if len(requests) == 1 else self._merged(requests, choices)
        try:
            async with aclosing(stream):
                async for update in stream:
                    clock.saw(update)
                    yield update
        except GraftlmError as error:
            clock.failed = not isinstance(error, EngineClosing)
            raise
        finally:
            del self._running[request_id]
            self.stats.record(None, [clock.stats(choices, num_prompt_tokens=len(requests[0].prompt_token_ids))])

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last update with finish_reason "abort". Unknown ids do nothing."""
        if engine_ids := self._running.get(request_id):
            await self.client.abort(engine_ids)

    async def abort_all(self) -> None:
        """End every request in progress."""
        if engine_ids := [engine_id for ids in self._running.values() for engine_id in ids]:
            await self.client.abort(engine_ids)

    async def shutdown(self) -> None:
        """Refuse new requests, end the engine and the stat loggers; safe to call twice."""
        self._closing = True
        await self.client.shutdown()
        await asyncio.to_thread(self.stats.close)
        record_call_times()

    def _check_open(self, request_id: str) -> None:
        if self.client.dead is not None:
            raise EngineDead(self.client.dead)
        if self._closing:
            raise EngineClosing("the server is shutting down and takes no new requests")
        if request_id in self._running:
            raise InvalidParameter("request_id", request_id, cure="a request with this id is in progress")

    async def _build(
        self, prompt: str | list[int], params: SamplingParams, *, request_id: str, priority: int
    ) -> list[EngineRequest]:
        if not isinstance(prompt, str):
            token_ids = prompt
        elif len(prompt) > _LONG_TEXT:
            token_ids = await asyncio.to_thread(self.encode, prompt)
        else:
            token_ids = self.encode(prompt)
        return self._builder.build(token_ids, params, request_id=request_id, priority=priority)

    async def _single(self, request: EngineRequest, choice: ChoiceStream) -> AsyncGenerator[TextUpdate, None]:
        async with _leaving(self.client.generate(request)) as updates:
            async for update in updates:
                text_update = choice.feed(update)
                yield text_update
                if text_update.finish_reason is not None:
                    return

    async def _merged(
        self, requests: list[EngineRequest], choices: list[ChoiceStream]
    ) -> AsyncGenerator[TextUpdate, None]:
        """One task for each choice, for as long as the choice lives."""
        arrived: asyncio.Queue[TextUpdate | BaseException] = asyncio.Queue()

        async def pump(request: EngineRequest, choice: ChoiceStream) -> None:
            try:
                async with aclosing(self._single(request, choice)) as updates:
                    async for update in updates:
                        arrived.put_nowait(update)
            except Exception as error:  # carried to the reader, who raises it
                arrived.put_nowait(error)

        tasks = [asyncio.create_task(pump(r, c)) for r, c in zip(requests, choices, strict=True)]
        running = len(tasks)
        try:
            while running:
                update = await arrived.get()
                if isinstance(update, BaseException):
                    raise update
                yield update
                running -= update.finish_reason is not None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclasses.dataclass(frozen=True)
class BegunEngine:
    """Processes that start and have their work, and the stat loggers; for `start_async_llm`, else `abandon`."""

    client: ProcessEngineClient
    stats: StatsHub

    def abandon(self) -> None:
        """End all of it at once; does nothing when `start_async_llm` has taken it over."""
        if not self.client.is_started:
            self.client.abandon()
            self.stats.close()


def begin_engine(config: EngineConfig, host: PluginHost) -> BegunEngine:
    """Load stat loggers, then start the engine's processes, before there is an event loop."""
    from graftlm.engine.client import ProcessEngineClient

    stats = build_stats_hub(config, host)
    client = ProcessEngineClient(config, host)
    try:
        client.begin()
    except BaseException:
        client.abandon()
        stats.close()
        raise
    return BegunEngine(client, stats)


async def start_async_llm(
    config: EngineConfig,
    host: PluginHost,
    *,
    on_status: Callable[[str], None],
    begun: BegunEngine | None = None,
) -> AsyncLLM:
    """Start the engine, unless it was `begun`, and wait for it, reading tokenizer and template meanwhile.

    `on_status` gets a sentence whenever the start goes a step further. On failure, and when it is cancelled,
    nothing is left running.
    """
    begun = begun or begin_engine(config, host)
    client, stats = begun.client, begun.stats
    starting = asyncio.create_task(client.start(on_status=on_status))
    loading = asyncio.create_task(asyncio.to_thread(load_text_assets, config))
    try:
        done, _ = await asyncio.wait((starting, loading), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()  # raises what went wrong
        return AsyncLLM(config, client, host=host, assets=loading.result(), stats=stats)
    except BaseException:
        for task in (starting, loading):
            task.cancel()
        await asyncio.gather(starting, loading, return_exceptions=True)
        await client.shutdown()
        await asyncio.to_thread(stats.close)
        raise


@contextlib.asynccontextmanager
async def _leaving(updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[AsyncIterator[RequestUpdate]]:
    """Close the client's stream on the way out, which aborts the request if it still runs."""
    try:
        yield updates
    finally:
        if isinstance(updates, AsyncGenerator):
            await updates.aclose()
