"""What can be measured beside something else: it starts, is sent prompts, and ends; mostly a server behind HTTP.

It knows the client and the process, not which engine runs in it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import msgspec
import psutil

from graftlm.cli.bench.client import ApiClient, Exchange
from graftlm.cli.bench.launch import ServerProcess
from graftlm.cli.bench.load import run_load
from graftlm.cli.bench.prompts import Prompt, as_body
from graftlm.contracts.errors import GraftlmError

#: vLLM compiles for four minutes on two cores before it serves.
START_LIMIT_S = 900.0


class RequestsFailed(GraftlmError):
    """A load that is no measurement, since some of its requests failed."""

    def __init__(self, failed: Sequence[Exchange], total: int) -> None:
        super().__init__(f"{len(failed)} of {total} requests failed, the first with {failed[0].error}")


class RunningPeer(Protocol):
    """A peer that has made its first token. `memory_mib` was read right after it."""

    first_token_s: float
    memory_mib: float

    def send(self, prompts: Sequence[Prompt], *, at_once: int) -> tuple[list[Exchange], float]:
        """Return what came of each prompt, and the seconds that all of them took; raises GraftlmError."""
        ...

    def alive(self) -> bool: ...

    def last_words(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Peer(Protocol):
    """A way to start something. `settings` is what a reader needs to start the same."""

    name: str
    version: str
    settings: str

    def start(self) -> RunningPeer:
        """Launch it and wait for its first token; raises LaunchFailed with its last words."""
        ...


class HttpPeer(msgspec.Struct, kw_only=True):
    """A server that speaks the OpenAI API. `command` makes its command line out of a port."""

    name: str
    version: str
    command: Callable[[int], Sequence[str]]
    settings: str = ""
    environment: Mapping[str, str] = {}
    extra: Mapping[str, Any] = {}
    """What every request carries, such as ignore_eos where the server knows it."""

    def start(self) -> RunningServer:
        server = ServerProcess(self.command, title=self.name, environment=self.environment, timeout_s=START_LIMIT_S)
        try:
            return RunningServer(server, extra=self.extra)
        except BaseException:
            server.end()
            raise


class RunningServer:
    """One launched server and the client of `graftlm bench serve`."""

    def __init__(self, server: ServerProcess, *, extra: Mapping[str, Any]) -> None:
        self.server = server
        self.first_token_s = server.wait_for_first_token().first_token_s
        self.memory_mib = memory_mib(server.process.pid)
        self._extra = {"temperature": 0, **extra}
        self._client = ApiClient(server.url)
        self._model = asyncio.run(self._client.first_model())

    def send(self, prompts: Sequence[Prompt], *, at_once: int) -> tuple[list[Exchange], float]:
        bodies = [as_body(prompt, model=self._model, chat=False, extra=self._extra) for prompt in prompts]
        calls = [functools.partial(self._client.stream, "/completions", body) for body in bodies]
        exchanges, seconds = asyncio.run(
            run_load(calls, gaps=itertools.repeat(0.0), max_concurrency=at_once, on_done=lambda _: None)
        )
        if failed := [exchange for exchange in exchanges if exchange.error is not None]:
            raise RequestsFailed(failed, len(exchanges))
        return exchanges, seconds

    def alive(self) -> bool:
        return self.server.process.poll() is None

    def last_words(self) -> str:
        return self.server.last_words()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.end()


def memory_mib(pid: int) -> float:
    """Return the PSS of a process and of all its children, in MiB: shared pages are counted once."""
    parent = psutil.Process(pid)
    family = [parent, *parent.children(recursive=True)]
    return float(sum(process.memory_full_info().pss for process in family) / 2**20)
