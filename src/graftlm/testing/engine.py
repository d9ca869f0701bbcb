"""An engine without a model, for tests of endpoint plugins, stat loggers and front ends: it follows a script.

It knows no text: a script is token ids.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineDead
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate
from graftlm.contracts.stats import StepStats


@dataclasses.dataclass
class Script:
    """What the engine answers to a request: these ids one a step, then this end; None never ends."""

    token_ids: list[int]
    finish_reason: FinishReason | None = FinishReason.LENGTH
    error: str | None = None


class ScriptedEngineClient:
    """A `graftlm.contracts.engine.EngineClient`: every request follows the script, or what the callable answers.

    `requests`, `aborted`, `left` (streams that were not read to their end) and `shut_down` say what was asked of
    it. Set `dead` to a cause, and every stream raises EngineDead; `step` plays one step's numbers to the listeners.
    """

    def __init__(self, script: Script | Callable[[EngineRequest], Script] | None = None) -> None:
        answer = Script([1, 2, 3]) if script is None else script
        self._script = answer if callable(answer) else lambda _: answer
        self.ready: EngineReady | None = EngineReady(num_blocks=10, block_size=16, max_model_len=64)
        self.dead: str | None = None
        self.shut_down = False
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.left: list[str] = []
        self._listeners: list[Callable[[StepStats], None]] = []

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestUpdate]:
        """Yield the script's tokens, one an update, and its end on the last one."""
        self.requests.append(request)
        script = self._script(request)
        ended = False
        try:
            for position, token_id in enumerate(script.token_ids, start=1):
                await asyncio.sleep(0)
                if self.dead is not None:
                    raise EngineDead(self.dead)
                if request.request_id in self.aborted:
                    ended = True
                    yield RequestUpdate(request_id=request.request_id, finish_reason=FinishReason.ABORT)
                    return
                ended = position == len(script.token_ids) and script.finish_reason is not None
                yield RequestUpdate(
                    request_id=request.request_id, new_token_ids=[token_id], num_cached_tokens=3,
                    finish_reason=script.finish_reason if ended else None, error=script.error if ended else None,
                )  # fmt: skip
            while script.finish_reason is None:  # as an engine that is busy elsewhere
                await asyncio.sleep(0.001)
                if request.request_id in self.aborted:
                    ended = True
                    yield RequestUpdate(request_id=request.request_id, finish_reason=FinishReason.ABORT)
                    return
        finally:
            if not ended:
                self.left.append(request.request_id)

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted.extend(request_ids)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    def step(self, stats: StepStats) -> None:
        """Tell the listeners about one step."""
        for listener in self._listeners:
            listener(stats)

    async def shutdown(self) -> None:
        self.shut_down = True
