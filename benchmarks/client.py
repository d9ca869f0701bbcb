"""A streaming load client that costs little: one asyncio connection per stream, no HTTP library.

It measures what a user of the completions API sees and knows nothing of the server behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field


@dataclass
class StreamTimes:
    """Moments of one streamed completion, in seconds of `time.perf_counter`."""

    start: float
    arrivals: list[float] = field(default_factory=list)
    text: str = ""

    @property
    def time_to_first_token_s(self) -> float:
        return self.arrivals[0] - self.start

    @property
    def inter_token_latencies_s(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.arrivals)]


async def stream_completion(host: str, port: int, body: dict[str, object]) -> StreamTimes:
    """POST one streaming completion and note when each chunk of it arrives."""
    payload = json.dumps({**body, "stream": True}).encode()
    times = StreamTimes(start=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode() + payload)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await reader.read()).decode()[-400:]}")
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                break
            now = time.perf_counter()
            chunk = json.loads(data)
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            if chunk["choices"]:
                times.arrivals.append(now)
                times.text += chunk["choices"][0]["text"]
    finally:
        writer.close()
    return times


async def run_streams(host: str, port: int, bodies: list[dict[str, object]]) -> tuple[list[StreamTimes], float]:
    """Run all bodies at once; return their times and the seconds from first byte out to last byte in."""
    start = time.perf_counter()
    streams = await asyncio.gather(*(stream_completion(host, port, body) for body in bodies))
    return list(streams), time.perf_counter() - start
