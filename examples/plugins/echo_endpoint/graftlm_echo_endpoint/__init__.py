"""Three routes under /plugins/echo/: an echo, facts about the engine, and a completion of token ids."""

from __future__ import annotations

import itertools
from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.engine import EngineClient
from graftlm.contracts.request import EngineRequest
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.stats import StepStats


class Words(BaseModel):
    """The body of POST /plugins/echo/echo."""

    text: str


class Tokens(BaseModel):
    """The body of POST /plugins/echo/continue."""

    token_ids: list[int] = Field(min_length=1)
    max_tokens: int = Field(default=8, ge=1)


class Echo(EndpointPlugin):
    """The entry point names this class: it is a callable without arguments that returns an EndpointPlugin."""

    name = "echo"
    engine: EngineClient
    settings: dict[str, Any]

    def __init__(self) -> None:
        self.steps = 0
        self._numbers = itertools.count()

    def attach_router(self, router: APIRouter) -> None:
        router.add_api_route("/echo", self.echo, methods=["POST"])
        router.add_api_route("/engine", self.facts, methods=["GET"])
        router.add_api_route("/continue", self.continue_tokens, methods=["POST"])

    async def init_state(self, engine: EngineClient, settings: dict[str, Any]) -> None:
        self.engine, self.settings = engine, settings
        engine.on_step(self._count)

    def _count(self, step: StepStats) -> None:
        self.steps += 1

    async def echo(self, words: Words) -> dict[str, str]:
        """Say it again."""
        return {"echo": f"{self.settings['greeting']}: {words.text}"}

    async def facts(self) -> dict[str, int]:
        """Tell what the engine decided, and how many steps it has taken."""
        ready = self.engine.ready
        if ready is None:
            raise HTTPException(503, "the engine is not ready")
        return {"max_model_len": ready.max_model_len, "num_blocks": ready.num_blocks, "steps": self.steps}

    async def continue_tokens(self, tokens: Tokens) -> dict[str, list[int]]:
        """Continue token ids greedily; leaving the iteration early would abort the request."""
        ready = self.engine.ready
        if ready is None or len(tokens.token_ids) + tokens.max_tokens > ready.max_model_len:
            raise HTTPException(400, "prompt and max_tokens do not fit the model's context")
        if not all(0 <= token < ready.vocab_size for token in tokens.token_ids):
            raise HTTPException(400, f"token ids are 0 to {ready.vocab_size - 1}")
        request = EngineRequest(
            request_id=f"echo-{next(self._numbers)}",
            prompt_token_ids=tokens.token_ids,
            params=SamplingParams(temperature=0.0, max_tokens=tokens.max_tokens, ignore_eos=True),
        )
        continued: list[int] = []
        async for update in self.engine.generate(request):
            continued += update.new_token_ids
        return {"token_ids": continued}
