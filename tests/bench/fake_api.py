"""An OpenAI-compatible server with a script for a model: what it is asked is kept, what it sends is known."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeApi:
    """Answers completions and chats with `num_tokens` pieces, `gap_s` apart, cut into odd network packets."""

    def __init__(
        self,
        *,
        gap_s: float = 0.0,
        usage: bool = True,
        chunked: bool = True,
        fail_every: int = 0,
        cached_tokens: int = 3,
    ) -> None:
        self.gap_s = gap_s
        self.usage = usage
        self.chunked = chunked
        self.fail_every = fail_every
        self.cached_tokens = cached_tokens
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.running = 0
        self.most_running = 0
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.headers.append(head)
            if head.startswith("GET"):
                data = json.dumps({"data": [{"id": "fake-model"}]}).encode()
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                return
            length = next(
                int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-l")
            )
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            if self.fail_every and len(self.bodies) % self.fail_every == 0:
                writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy")
                return
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self._stream(writer, body, chat="/chat/" in head)
            finally:
                self.running -= 1
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], *, chat: bool) -> None:
        transfer = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{transfer}\r\n".encode())
        if chat:
            self._send(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(body["max_tokens"]):
            await asyncio.sleep(self.gap_s)
            piece = f"t{number} "
            self._send(writer, {"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]})
        self._send(writer, {"choices": [{"text": "", "finish_reason": "length"}] if not chat else [{"delta": {}}]})
        if self.usage:
            details = {"cached_tokens": self.cached_tokens}
            counts = {
                "prompt_tokens": 11,
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": details,
            }
            self._send(writer, {"choices": [], "usage": counts})
        self._write(writer, b"data: [DONE]\n\n")
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _send(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        self._write(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Cut each event in the middle of a line: a client may not rely on packets."""
        for part in (data[:7], data[7:]):
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n" if self.chunked else part)


@contextmanager
def running(api: FakeApi) -> Iterator[FakeApi]:
    """Serve on a free port from a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(api.answer, "127.0.0.1", 0), loop).result(60)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
