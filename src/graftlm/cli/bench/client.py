"""A streaming client of the OpenAI API that costs little: one asyncio connection per request, no HTTP library.

It notes when each piece of an answer arrives and what the server says it counted. It knows nothing of the server
behind the API, and sends what it is given.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from graftlm.contracts.errors import GraftlmError

_MAX_LINE_BYTES = 2**22


class ServerTrouble(GraftlmError):
    """A server that cannot be measured; the text names it and the cure."""

    def __init__(self, url: str, *, problem: str, cure: str = "") -> None:
        super().__init__(f"{url}: {problem}" + (f"; {cure}" if cure else ""))


class Exchange(msgspec.Struct, kw_only=True):
    """One request as its sender saw it; moments are seconds of `time.perf_counter`."""

    start: float
    arrivals: list[float] = []
    """When each piece of text came; a piece may hold several tokens."""
    end: float = 0.0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        """What the server counted, or else the pieces."""
        return len(self.arrivals) if self.num_output_tokens is None else self.num_output_tokens

    @property
    def time_to_first_token_s(self) -> float:
        return self.arrivals[0] - self.start

    @property
    def e2e_latency_s(self) -> float:
        return self.end - self.start

    @property
    def inter_token_latencies_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.arrivals)]

    @property
    def time_per_output_token_s(self) -> float | None:
        """The mean time of a token after the first; None when there was only one."""
        if self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str | None:
        """The text that came, or None where a chunk brings none: a chat's first, or a bare reason to end."""
        if self.delta is not None:
            return self.delta.content or self.delta.reasoning_content or None
        return None if not self.text and self.finish_reason is not None else self.text


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ApiClient:
    """Sends to one server. `url` is its root, with or without /v1."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerTrouble(url, problem="it is no web address", cure="write it as http://127.0.0.1:8000")
        self.url = url
        self._host = parts.hostname
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._root = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""

    async def first_model(self) -> str:
        """Return the first model that the server names; raises ServerTrouble."""
        try:
            _, body = await self._get("/models")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError, asyncio.IncompleteReadError) as error:
            problem = f"it does not say which models it has ({error})"
            raise ServerTrouble(self.url, problem=problem, cure="is it running? Or name one with --model") from None

    async def stream(self, route: str, body: Mapping[str, Any]) -> Exchange:
        """POST a streaming request and follow it to its end; what goes wrong is in the exchange's `error`."""
        payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        exchange = Exchange(start=time.perf_counter())
        try:
            reader, writer = await self._connect()
        except OSError as error:
            exchange.error = f"no connection: {error}"
            return exchange
        try:
            writer.write(self._head("POST", route, length=len(payload)) + payload)
            status, headers = await _read_head(reader)
            pieces = _read_body(reader, headers)
            if status != 200:
                text = b"".join([piece async for piece in pieces]).decode(errors="replace")
                exchange.error = f"HTTP {status}: {text[:400]}"
            else:
                await _follow(pieces, exchange)
        except asyncio.IncompleteReadError:
            exchange.error = "the connection ended in the middle of the answer"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            exchange.error = f"{type(error).__name__}: {error}"
        finally:
            exchange.end = time.perf_counter()
            writer.close()
        if exchange.error is None and not exchange.arrivals:
            exchange.error = "the answer ended without a token"
        return exchange

    async def _get(self, route: str) -> tuple[int, bytes]:
        reader, writer = await self._connect()
        try:
            writer.write(self._head("GET", route))
            status, headers = await _read_head(reader)
            return status, b"".join([piece async for piece in _read_body(reader, headers)])
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_MAX_LINE_BYTES)

    def _head(self, method: str, route: str, *, length: int | None = None) -> bytes:
        body = f"Content-Type: application/json\r\nContent-Length: {length}\r\n" if length is not None else ""
        lines = f"{method} {self._root}{route} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        return f"{lines}{self._key}{body}Accept: */*\r\nConnection: close\r\n\r\n".encode()


async def run_at_once(
    client: ApiClient, route: str, bodies: Sequence[Mapping[str, Any]]
) -> tuple[list[Exchange], float]:
    """Send all bodies at the same moment; also return the seconds until the last has ended."""
    start = time.perf_counter()
    exchanges = await asyncio.gather(*(client.stream(route, body) for body in bodies))
    return list(exchanges), time.perf_counter() - start


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status_line = (await _line(reader)).decode("latin-1").split(" ", 2)
    if len(status_line) < 2 or not status_line[1].isdecimal():
        raise ValueError(f"no HTTP answer: {' '.join(status_line).strip()!r}")
    headers: dict[str, str] = {}
    while (line := (await _line(reader)).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status_line[1]), headers


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; raises IncompleteReadError where the connection ends before its end."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    return line


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yield the body as it comes, without its transfer encoding."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        left = int(headers["content-length"]) if "content-length" in headers else None
        while left != 0 and (data := await reader.read(65_536 if left is None else min(left, 65_536))):
            yield data
            left = None if left is None else left - len(data)
        return
    while (size := int((await _line(reader)).partition(b";")[0], 16)) > 0:
        yield await reader.readexactly(size)
        await reader.readline()


async def _follow(pieces: AsyncIterator[bytes], exchange: Exchange) -> None:
    """Read server-sent events until [DONE] or the end."""
    rest = b""
    async for data in pieces:
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            event = line[5:].strip()
            if event == b"[DONE]":
                return
            _take(_decode(event), exchange, now)
            if exchange.error is not None:
                return


def _take(chunk: _Chunk, exchange: Exchange, now: float) -> None:
    if chunk.error is not None:
        message = chunk.error.get("message", chunk.error) if isinstance(chunk.error, dict) else chunk.error
        exchange.error = str(message)
        return
    for choice in chunk.choices:
        if (piece := choice.piece) is not None:
            exchange.arrivals.append(now)
            exchange.text += piece
    if chunk.usage is not None:
        exchange.num_prompt_tokens = chunk.usage.prompt_tokens
        exchange.num_output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        exchange.num_cached_tokens = (details.cached_tokens or 0) if details is not None else 0
