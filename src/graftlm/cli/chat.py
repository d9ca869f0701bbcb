"""What `graftlm run` needs of whoever answers; it knows neither engine nor server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from graftlm.contracts.sampling import SamplingParams

Message = dict[str, Any]

LONGEST_ANSWER = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How answers are drawn; `seed` None takes the engine's."""

    max_tokens: int | None
    """None: as many as the context has room for, up to LONGEST_ANSWER; a server has its own mind."""
    temperature: float
    top_p: float
    seed: int | None = None

    def sampling_params(self, *, room: int = LONGEST_ANSWER) -> SamplingParams:
        """Return the wishes about one answer; raises InvalidParameter."""
        longest = self.max_tokens if self.max_tokens is not None else max(1, min(LONGEST_ANSWER, room))
        return SamplingParams(max_tokens=longest, temperature=self.temperature, top_p=self.top_p, seed=self.seed)

    def limit(self, *, room: int | None = None) -> str:
        """Name what ends a long answer; `room` None is that of a server, which only it knows."""
        if self.max_tokens is not None:
            return f"--max-tokens={self.max_tokens}"
        if room is None:
            return "the server's limit"
        return f"--max-tokens={LONGEST_ANSWER}, the default" if room > LONGEST_ANSWER else "the context's end"


class ChatBackend(Protocol):
    """Answers messages, piece by piece; used as a context manager that frees what it holds."""

    @property
    def model(self) -> str: ...

    @property
    def cut_at(self) -> str:
        """The limit at which the last answer was cut; "" where it ended by itself."""
        ...

    def stream(self, messages: Sequence[Message]) -> Iterator[str]: ...

    def __enter__(self) -> ChatBackend: ...

    def __exit__(self, *exception: object) -> None: ...
