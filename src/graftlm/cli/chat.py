"""What `graftlm run` needs of whoever answers; it knows neither engine nor server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Message = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How answers are drawn; `seed` None takes the engine's."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None = None


class ChatBackend(Protocol):
    """Answers messages, piece by piece; used as a context manager that frees what it holds."""

    @property
    def model(self) -> str: ...

    def stream(self, messages: Sequence[Message]) -> Iterator[str]: ...

    def __enter__(self) -> ChatBackend: ...

    def __exit__(self, *exception: object) -> None: ...
