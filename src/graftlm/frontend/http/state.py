"""What the routes of one server share: the engine once it is there, its phase, and the calls in progress.

It does not know HTTP. Phases go starting → ready → closing, and to dead from any of them.
"""

from __future__ import annotations

import logging
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from graftlm.contracts.errors import EngineClosing, EngineDead, UnknownModel
from graftlm.contracts.points import STAT_LOGGER_PLUGINS
from graftlm.frontend.http.errors import NotReady
from graftlm.frontend.http.flights import Flights
from graftlm.frontend.http.metrics import PrometheusMetrics
from graftlm.plugins import Plugin, find_host
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.config.server_config import ServerConfig
    from graftlm.frontend.async_llm import AsyncLLM
    from graftlm.frontend.http.endpoint_routes import Override


logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """How far the server has come, in the words of /health."""

    STARTING = "starting"
    READY = "ready"
    CLOSING = "closing"
    DEAD = "dead"


class ServerState:
    """One per server; only `server.py` changes the phase."""

    def __init__(self, server_config: ServerConfig, config: EngineConfig) -> None:
        self.server_config = server_config
        self.config = config
        self.phase = Phase.STARTING
        self.reason = "the engine starts"
        self.llm: AsyncLLM | None = None
        self.created = int(time.time())
        self.flights = Flights()
        self.metrics = PrometheusMetrics(config)
        self.plugin_prefixes: dict[str, Plugin] = {}
        """Path prefix of each attached endpoint plugin → who it is."""
        self.open_prefixes: set[str] = set()
        """Those of them that need no API key."""
        self.overrides: list[Override] = []
        """Routes of plugins in place of the server's own."""
        self.override_routes: list[BaseRoute] = []
        """What the application holds of them, before all other routes."""

    @property
    def served_names(self) -> list[str]:
        return list(self.config.model.served_model_name) or [self.config.model.model]

    @property
    def max_model_len(self) -> int | None:
        """The context of the served model: what the engine decided, once it has."""
        ready = self.llm.client.ready if self.llm is not None else None
        return ready.max_model_len if ready is not None else self.config.model.max_model_len

    def set_status(self, text: str) -> None:
        """Take what the engine says about its start."""
        self.reason = text
        logger.info("starting status=%r", text)

    def set_ready(self, llm: AsyncLLM) -> None:
        self.llm = llm
        self.phase = Phase.READY
        self.reason = ""

    def set_closing(self) -> None:
        """Take no new requests from now on."""
        if self.phase != Phase.DEAD:
            self.phase = Phase.CLOSING
            self.reason = "the server is shutting down"

    def set_dead(self, cause: str) -> None:
        self.phase = Phase.DEAD
        self.reason = cause

    def health(self) -> tuple[Phase, str]:
        """Return the phase and why it is not READY."""
        if self.phase == Phase.READY and self.llm is not None and (cause := self.llm.unhealthy()):
            return Phase.DEAD, cause
        return self.phase, self.reason

    def engine(self) -> AsyncLLM:
        """Return the engine if it may be used; raises NotReady, EngineClosing or EngineDead."""
        match self.phase:
            case Phase.STARTING:
                raise NotReady(self.reason)
            case Phase.CLOSING:
                raise EngineClosing("the server is shutting down and takes no new requests")
            case Phase.DEAD:
                raise EngineDead(self.reason)
        assert self.llm is not None
        return self.llm

    def model_name(self, wanted: str | None) -> str:
        """Return the name to answer under; raises UnknownModel."""
        names = self.served_names
        if wanted is None:
            return names[0]
        if wanted not in names:
            raise UnknownModel(wanted, served=names)
        return wanted

    def describe_plugins(self, *, events: bool) -> dict[str, Any]:
        """Return what GET /plugins says, on wish with the ledgers; NotReady in a process without a plugin host."""
        host = (self.llm.host if self.llm is not None else None) or find_host()
        if host is None:
            raise NotReady("the plugins are not loaded")
        described = host.describe()
        if self.llm is not None:
            _add_stat_loggers(described["plugins"], self.llm.stats.describe())
        return {**described, "events": host.events()} if events else described


def _add_stat_loggers(rows: list[dict[str, Any]], stat_loggers: list[dict[str, Any]]) -> None:
    """Say in each stat logger's row how it does while the server serves."""
    by_label = {facts["label"]: facts for facts in stat_loggers}
    for row in rows:
        facts = by_label.get(f"{row['distribution']}:{row['name']}")
        if facts is None or row["point"] != STAT_LOGGER_PLUGINS.name:
            continue
        row["serving"] = {key: facts[key] for key in ("errors", "last_error", "dropped", "waiting", "seconds")}
        faults = (
            [f"{counted(facts['errors'], 'error')}, the last: {facts['last_error']}"] if facts["errors"] else []
        )
        faults += [f"{counted(facts['dropped'], 'record')} dropped"] if facts["dropped"] else []
        row["reason"] = "; ".join(faults) or row["reason"]


def state_of(connection: HTTPConnection) -> ServerState:
    """Return the state of the server that got this request."""
    return cast(ServerState, connection.app.state.server)
