"""A second client, to check the numbers of `graftlm bench serve`, with which it shares no code.

A thread for each stream, `httpx` for HTTP, `json` for the events, `time.monotonic` for moments, numpy for
percentiles. It reads a load as JSON lines with "prompt" and sends them all at once.

    python -m benchmarks.second_client URL PROMPTS.jsonl OUTPUT_LEN     one line of JSON on standard output
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np


class Stream(threading.Thread):
    """One request, from its sending to the end of its answer."""

    def __init__(self, url: str, body: dict[str, Any], gate: threading.Barrier) -> None:
        super().__init__()
        self._url = url
        self._body = body
        self._gate = gate
        self.sent = self.ended = 0.0
        self.tokens = 0
        self.moments: list[float] = []
        self.error: str | None = None

    def run(self) -> None:
        # A client each: what is measured is a new user's request, its connection included.
        with httpx.Client(timeout=600) as client:
            self._gate.wait()
            self.sent = time.monotonic()
            try:
                with client.stream("POST", f"{self._url}/v1/completions", json=self._body) as response:
                    response.raise_for_status()
                    for line in response.iter_lines():
                        self._take(line, time.monotonic())
            except httpx.HTTPError as error:
                self.error = repr(error)
            self.ended = time.monotonic()

    def _take(self, line: str, now: float) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        if event.get("choices") and event["choices"][0].get("text"):
            self.moments.append(now)


def measure(url: str, prompts: Sequence[Any], output_len: int) -> dict[str, float]:
    """Send all prompts at once; return tokens per second, latencies in milliseconds, and this client's cost."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    gate = threading.Barrier(len(prompts) + 1)
    common = {"model": model, "max_tokens": output_len, "temperature": 0, "ignore_eos": True, "stream": True,
              "stream_options": {"include_usage": True}}  # fmt: skip
    streams = [Stream(url, {**common, "prompt": prompt}, gate) for prompt in prompts]
    for stream in streams:
        stream.start()
    gate.wait()
    begin, cpu = time.monotonic(), time.process_time()
    for stream in streams:
        stream.join()
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
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
