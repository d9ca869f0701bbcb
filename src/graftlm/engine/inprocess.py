"""The engine inside the calling process, for the offline `LLM`: the same core, stepped by hand.

It does not know text. With more than one rank the workers are still processes of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineClosing, EngineDead
from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.engine.core import EngineCore, build_core
from graftlm.plugins import Role, current_host

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.stats import StepStats


class InProcessEngineClient:
    """One core in this process and thread. Nothing is frozen: the process belongs to the caller."""

    def __init__(self, config: EngineConfig, *, on_status: Callable[[str], None] = lambda text: None) -> None:
        """Start the engine and wait until it can serve; raises StartupError."""
        self.config = config
        self._dead: str | None = None
        current_host().take_role(Role.ENGINE)
        self._core: EngineCore | None = build_core(config, on_failure=self._fail, on_status=on_status)
        self._step_listeners: list[Callable[[StepStats], None]] = []
        self._ready = self._take_reports(self._core)

    def _take_reports(self, core: EngineCore) -> EngineReady:
        host = current_host()
        ledgers = [report.ledger for report in core.reports if report.ledger]
        try:
            for ledger in ledgers:
                host.check_child(ledger)
        except BaseException:
            core.shutdown()
            raise
        return EngineReady(
            num_blocks=core.num_blocks,
            block_size=core.reports[0].block_size,
            max_model_len=self.config.model.max_model_len or 0,
            vocab_size=int(self.config.model.hf_config.get("vocab_size") or 0),
            pids={f"worker {report.rank}": report.pid for report in core.reports if report.pid != os.getpid()},
            ledgers=ledgers,
        )

    @property
    def ready(self) -> EngineReady:
        return self._ready

    @property
    def dead(self) -> str | None:
        return self._dead

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call `listener` with the numbers of every step, between two steps."""
        self._step_listeners.append(listener)

    def generate_all(self, requests: Sequence[EngineRequest], on_update: Callable[[RequestUpdate], None]) -> None:
        """Serve all requests to their ends, telling every update; raises EngineDead.

        `on_update` may call `abort`. When it raises, or on Ctrl-C, everything is aborted.
        """
        core = self._living_core()
        unfinished = {request.request_id for request in requests}
        for request in requests:
            core.add_request(request)
        try:
            while unfinished:
                outputs = self._step(core)
                for update in outputs:
                    if update.finish_reason is not None:
                        unfinished.discard(update.request_id)
                    on_update(update)
        finally:
            if unfinished and self._dead is None:
                core.abort(sorted(unfinished))
                while core.has_work:
                    self._step(core)

    def abort(self, request_ids: list[str]) -> None:
        """End requests; each still gets a last update."""
        self._living_core().abort(request_ids)

    def _step(self, core: EngineCore) -> list[RequestUpdate]:
        self._living_core()
        try:
            outputs = core.step()
        except Exception as error:
            self._fail(str(error))
            raise error if isinstance(error, EngineDead) else EngineDead(f"engine core: {error!r}") from error
        if outputs.stats is not None:
            for listener in self._step_listeners:
                listener(outputs.stats)
        return outputs.updates

    def _living_core(self) -> EngineCore:
        if self._dead is not None:
            raise EngineDead(self._dead)
        if self._core is None:
            raise EngineClosing("the engine has been shut down; build another LLM")
        return self._core

    def _fail(self, cause: str) -> None:
        self._dead = self._dead or cause

    def shutdown(self) -> None:
        """End the workers and let go of the model; safe to call twice."""
        core, self._core = self._core, None
        if core is not None:
            core.shutdown()
