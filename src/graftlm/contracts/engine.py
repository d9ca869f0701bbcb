"""The contract between the front end and the engine, whatever lies between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.stats import StepStats


class EngineReady(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the engine core decided while it started, sent with READY.

    `ledgers` holds one plugin ledger for each process, as the plugin system encodes it; `startup_traces` is empty
    unless they were asked for.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int = 0
    pids: dict[str, int] = {}
    ledgers: list[bytes] = []
    startup_traces: list[bytes] = []


class EngineClient(Protocol):
    """An engine as the front end sees it."""

    @property
    def ready(self) -> EngineReady | None:
        """What the engine reported, or None before READY."""

    @property
    def dead(self) -> str | None:
        """The cause of death, or None while it lives."""

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestUpdate]:
        """Submit a request and stream its updates; leaving the iteration aborts it. Raises EngineDead."""
        ...

    async def abort(self, request_ids: list[str]) -> None: ...

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call `listener` with the numbers of every step, on the event loop."""

    async def shutdown(self) -> None: ...
