"""What `graftlm serve` does before any plugin runs: empty children start to import torch, and the port answers.

Both are guesses read from a few flags. A start that is refused afterwards ends them; one that turns out otherwise
replaces them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graftlm.config.options import engine_options, server_options
from graftlm.processes.early import end_early

if TYPE_CHECKING:
    import socket

    from graftlm.config.engine_config import EngineConfig
    from graftlm.config.server_config import ServerConfig
    from graftlm.frontend.http.early_answers import EarlyAnswers

logger = logging.getLogger(__name__)

CHILDREN = ("start_method", "tensor_parallel_size", "distributed_executor_backend", "threads_per_worker")

#: What is read ahead of the other flags, beside the selection of plugins.
AHEAD_OPTIONS = (
    *(o for o in engine_options() if o.section == "parallel" and o.field in (*CHILDREN, "preload")),
    *(o for o in server_options() if o.field in ("host", "port")),
)


def start_children(values: Mapping[str, Any]) -> None:
    """Start the engine core, empty, as the flags let expect it; raises InvalidOption before.

    With more than one worker nothing is started yet: the model may not divide among them. Nor is it where a warm
    parent will give a process: it takes no time then, and which parent is best depends on the checkpoint.
    """
    from graftlm.engine.validation import check_ranges

    check_ranges(values)
    start_method = values.get("parallel.start_method", "spawn")
    if values.get("parallel.preload", True) and _find_warm_parents(start_method):
        end_early()
    elif values.get("parallel.tensor_parallel_size", 1) == 1:
        _prestart({field: values[f"parallel.{field}"] for field in CHILDREN if f"parallel.{field}" in values})
    else:
        end_early()


def start_configured_children(config: EngineConfig) -> None:
    """Start what `start_children` left: the front end still has modules to import, and they have torch."""
    from graftlm.engine.core_child import is_ahead

    if is_ahead() or (config.parallel.preload and _start_warm(config)):
        return
    _prestart({field: getattr(config.parallel, field) for field in CHILDREN})


def _find_warm_parents(start_method: str) -> bool:
    from graftlm.engine.warm_start import find_fitting

    return find_fitting(start_method)


def _start_warm(config: EngineConfig) -> bool:
    from graftlm.engine.warm_start import start_warm

    return start_warm(config)


def _prestart(parallel: Mapping[str, Any]) -> None:
    from graftlm.engine.core_child import prestart

    prestart(
        start_method=parallel.get("start_method", "spawn"),
        num_workers=parallel.get("tensor_parallel_size", 1),
        executor_backend=parallel.get("distributed_executor_backend"),
        threads_per_worker=parallel.get("threads_per_worker"),
    )


class Port:
    """The port, bound as soon as it is known, which says what the start is busy with until a server takes it."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._answers: EarlyAnswers | None = None

    def open(self, values: Mapping[str, Any]) -> None:
        """Bind and answer. A port that cannot be bound is told by `require`, after other mistakes in the flags."""
        from graftlm.config.server_config import ServerConfig
        from graftlm.contracts.errors import StartupError
        from graftlm.frontend.http.listener import PORTS

        given = {o.field: values[o.path] for o in AHEAD_OPTIONS if o.section == "server" and o.path in values}
        config = ServerConfig(**given)
        if config.port in PORTS:
            with contextlib.suppress(StartupError):
                self._bind(config)

    def require(self, config: ServerConfig) -> None:
        """Raise StartupError if the port cannot be bound; for when nothing has been fetched yet."""
        if self._listener is None:
            self._bind(config)

    def _bind(self, config: ServerConfig) -> None:
        from graftlm.frontend.http.early_answers import EarlyAnswers
        from graftlm.frontend.http.listener import bind, url_of

        self._listener = bind(config)
        self._answers = EarlyAnswers(self._listener, reason="choosing plugins and platform")
        logger.info("listening url=%s", url_of(self._listener))

    def say(self, reason: str) -> None:
        """Tell who asks, and the terminal, what the start is busy with."""
        logger.info("starting status=%r", reason)
        if self._answers is not None:
            self._answers.say(reason)

    def hand_over(self) -> socket.socket | None:
        """Stop answering and return the listener, which the caller closes; None if none was bound."""
        if self._answers is not None:
            self._answers.stop()
        listener, self._listener, self._answers = self._listener, None, None
        return listener

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *error: object) -> None:
        if (listener := self.hand_over()) is not None:
            listener.close()
