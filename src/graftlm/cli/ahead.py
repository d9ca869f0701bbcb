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

if TYPE_CHECKING:
    import socket

    from graftlm.frontend.http.early_answers import EarlyAnswers

logger = logging.getLogger(__name__)

CHILDREN = ("start_method", "tensor_parallel_size", "distributed_executor_backend", "threads_per_worker")

#: What is read ahead of the other flags, beside the selection of plugins.
AHEAD_OPTIONS = (
    *(o for o in engine_options() if o.section == "parallel" and o.field in CHILDREN),
    *(o for o in server_options() if o.field in ("host", "port")),
)


#: More workers than this are started only when the model is known to divide among them.
MOST_AHEAD = 8


def start_children(values: Mapping[str, Any]) -> None:
    """Start the engine's processes, empty, as the flags let expect them; raises InvalidOption before the first."""
    from graftlm.engine.core_child import prestart
    from graftlm.engine.validation import check_ranges

    check_ranges(values)
    num_workers = values.get("parallel.tensor_parallel_size", 1)
    if num_workers > MOST_AHEAD:
        return
    prestart(
        start_method=values.get("parallel.start_method", "spawn"),
        num_workers=num_workers,
        executor_backend=values.get("parallel.distributed_executor_backend"),
        threads_per_worker=values.get("parallel.threads_per_worker"),
    )


class Port:
    """The port, bound as soon as it is known, which says what the start is busy with until a server takes it."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._answers: EarlyAnswers | None = None

    def open(self, values: Mapping[str, Any]) -> None:
        """Bind and answer. A port that cannot be bound is the server's to complain about, after other mistakes."""
        from graftlm.config.server_config import ServerConfig
        from graftlm.contracts.errors import StartupError
        from graftlm.frontend.http.early_answers import EarlyAnswers
        from graftlm.frontend.http.listener import bind, url_of

        given = {o.field: values[o.path] for o in AHEAD_OPTIONS if o.section == "server" and o.path in values}
        with contextlib.suppress(StartupError, OverflowError):
            self._listener = bind(ServerConfig(**given))
            self._answers = EarlyAnswers(self._listener, reason="choosing plugins and platform")
            logger.info("listening url=%s", url_of(self._listener))

    def say(self, reason: str) -> None:
        """Tell who asks, and the terminal, what the start is busy with."""
        logger.info("starting status=%r", reason)
        if self._answers is not None:
            self._answers.say(reason)

    def hand_over(self) -> socket.socket | None:
        """Stop answering and return the listener, which the caller closes; None if it could not be bound."""
        if self._answers is not None:
            self._answers.stop()
        listener, self._listener, self._answers = self._listener, None, None
        return listener

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *error: object) -> None:
        if (listener := self.hand_over()) is not None:
            listener.close()
