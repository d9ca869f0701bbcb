"""The routes over a fake engine; the engine's own tests run them in a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from graftlm_echo_endpoint import Echo, Tokens, Words

from graftlm.contracts.engine import EngineReady
from graftlm.contracts.request import EngineRequest, RequestUpdate


class CountingEngine:
    """Continues 7 with 8, 9, …"""

    ready = EngineReady(num_blocks=10, block_size=16, max_model_len=64, vocab_size=100)

    def on_step(self, listener: Any) -> None:
        self.listener = listener

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestUpdate]:
        last = request.prompt_token_ids[-1]
        for number in range(request.params.max_tokens or 0):
            yield RequestUpdate(request_id=request.request_id, new_token_ids=[last + number + 1])


@pytest.fixture
def echo() -> Echo:
    """The plugin, attached and initialized."""
    plugin = Echo()
    plugin.attach_router(APIRouter())
    asyncio.run(plugin.init_state(CountingEngine(), {"greeting": "hello"}))  # type: ignore[arg-type]
    return plugin


def test_the_routes_are_described() -> None:
    """What is attached shows up in the OpenAPI document."""
    app, router = FastAPI(), APIRouter()
    Echo().attach_router(router)
    app.include_router(router, prefix="/plugins/echo")

    assert {"/plugins/echo/echo", "/plugins/echo/engine", "/plugins/echo/continue"} <= set(app.openapi()["paths"])


def test_it_echoes_and_continues(echo: Echo) -> None:
    """The greeting is a setting; tokens come from the engine."""
    assert asyncio.run(echo.echo(Words(text="hi"))) == {"echo": "hello: hi"}
    assert asyncio.run(echo.continue_tokens(Tokens(token_ids=[7], max_tokens=3))) == {"token_ids": [8, 9, 10]}
    assert asyncio.run(echo.facts())["max_model_len"] == 64


@pytest.mark.parametrize("tokens", [Tokens(token_ids=[7], max_tokens=64), Tokens(token_ids=[100])])
def test_what_the_engine_could_not_serve_is_refused(echo: Echo, tokens: Tokens) -> None:
    """An endpoint that talks to the engine checks what the engine takes for granted."""
    with pytest.raises(HTTPException):
        asyncio.run(echo.continue_tokens(tokens))
