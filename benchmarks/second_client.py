"""A second client, to check the numbers of `graftlm bench serve`, with which it shares no code.

One thread and a selector: while the load runs it only notes the moment of each packet, so that it takes next to
nothing from a server that computes on every core. Afterwards `h11` reads HTTP, `json` the events, and numpy makes
the percentiles. It reads a load as JSON lines with "prompt" and sends them all at once.

    python -m benchmarks.second_client URL PROMPTS.jsonl OUTPUT_LEN     one line of JSON on standard output
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx
import numpy as np

_LONGEST_SILENCE_S = 600
_PACKET_BYTES = 65_536


class Stream:
    """One request, from its sending to the end of its answer."""

    def __init__(self, host: str, port: int, body: dict[str, Any]) -> None:
        self._address = host, port
        self._http = h11.Connection(h11.CLIENT)
        payload = json.dumps(body).encode()
        headers = [("Host", f"{host}:{port}"), ("Content-Type", "application/json"), ("Connection", "close"),
                   ("Content-Length", str(len(payload)))]  # fmt: skip
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        events = request, h11.Data(data=payload), h11.EndOfMessage()
        self._unsent = b"".join(self._http.send(event) or b"" for event in events)
        self._packets: list[tuple[float, bytes]] = []
        self.socket = socket.socket()
        self.sent = self.ended = 0.0
        self.tokens = 0
        self.moments: list[float] = []
        self.error: str | None = None

    def begin(self) -> None:
        """Connect without waiting: what is measured is a new user's request, its connection included."""
        self.socket.setblocking(False)
        self.sent = time.monotonic()
        self.socket.connect_ex(self._address)

    def send(self) -> bool:
        """Send what the network takes; True once all is sent."""
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
        return not self._unsent

    def receive(self) -> bool:
        """Note what has come, and when; False at the end."""
        data = self.socket.recv(_PACKET_BYTES)
        self._packets.append((time.monotonic(), data))
        return bool(data)

    def read(self) -> None:
        """Find in the packets when each piece of text came, and how many tokens the server counted."""
        rest, status, message = b"", 200, b""
        for now, data in self._packets:
            try:
                self._http.receive_data(data)
                while (event := self._http.next_event()) is not h11.NEED_DATA:
                    match event:
                        case h11.Response():
                            status = event.status_code
                        case h11.Data() if status != 200:
                            message += event.data
                        case h11.Data():
                            *lines, rest = (rest + event.data).split(b"\n")
                            for line in lines:
                                self._take(line, now)
                        case h11.EndOfMessage():
                            self.ended = now
                            break
            except h11.RemoteProtocolError as error:
                self.error = repr(error)
            if self.ended or self.error:
                break
        if status != 200:
            self.error = f"HTTP {status}: {message.decode(errors='replace')}"
        elif not self.ended or not self.moments:
            self.error = self.error or "the answer has no end, or no text"

    def _take(self, line: bytes, now: float) -> None:
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        if event.get("choices") and event["choices"][0].get("text"):
            self.moments.append(now)


def run(streams: Sequence[Stream]) -> None:
    """Send all requests at once and take in their answers to the end; a stream that fails says so in `error`."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.begin()
            selector.register(stream.socket, selectors.EVENT_WRITE, stream)
        while selector.get_map():
            ready = selector.select(_LONGEST_SILENCE_S)
            if not ready:
                raise SystemExit(f"nothing came from the server for {_LONGEST_SILENCE_S} s")
            for key, what in ready:
                stream = key.data
                try:
                    if what & selectors.EVENT_WRITE:
                        if stream.send():
                            selector.modify(stream.socket, selectors.EVENT_READ, stream)
                        continue
                    if stream.receive():
                        continue
                except OSError as error:
                    stream.error = repr(error)
                selector.unregister(stream.socket)
                stream.socket.close()


def measure(url: str, prompts: Sequence[Any], output_len: int) -> dict[str, float]:
    """Send all prompts at once; return tokens per second, latencies in milliseconds, and this client's cost."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    server = urlsplit(url)
    if server.scheme != "http" or server.hostname is None or server.port is None:
        raise SystemExit(f"{url!r} is no http://HOST:PORT")
    common = {"model": model, "max_tokens": output_len, "temperature": 0, "ignore_eos": True, "stream": True,
              "stream_options": {"include_usage": True}}  # fmt: skip
    streams = [Stream(server.hostname, server.port, {**common, "prompt": prompt}) for prompt in prompts]
    begin, cpu = time.monotonic(), time.process_time()
    run(streams)
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    for stream in streams:
        if stream.error is None:
            stream.read()
    if errors := [stream.error for stream in streams if stream.error]:
        raise SystemExit(f"{len(errors)} requests failed, the first with {errors[0]}")
    first = np.array([s.moments[0] - s.sent for s in streams]) * 1e3
    whole = np.array([s.ended - s.sent for s in streams]) * 1e3
    gaps = np.concatenate([np.diff(s.moments) for s in streams]) * 1e3
    return {
        "output tok/s": sum(s.tokens for s in streams) / seconds,
        "TTFT p50, ms": float(np.percentile(first, 50)),
        "TTFT p99, ms": float(np.percentile(first, 99)),
        "ITL p50, ms": float(np.percentile(gaps, 50)),
        "ITL p99, ms": float(np.percentile(gaps, 99)),
        "E2E p50, ms": float(np.percentile(whole, 50)),
        "client, of one core": cpu / seconds,
    }


def main() -> None:
    url, file, output_len = sys.argv[1], sys.argv[2], int(sys.argv[3])
    prompts = [json.loads(line)["prompt"] for line in Path(file).read_text(encoding="utf-8").splitlines()]
    print(json.dumps(measure(url, prompts, output_len)))


if __name__ == "__main__":
    main()
