"""Two hundred mixed requests, many of them left by their clients: all end, and nothing grows or is kept."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import LiveServer, Memory, memory_of, wait_until

CONCURRENCY = 32
WARM, ALL = 50, 200
#: More than one request of full length needs, far less than 32 requests want: many are preempted.
CACHE_BYTES = 60 * 4096

LEFT = "left by the client"


class Load:
    """Draws requests and counts how they end."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.ends: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Send `count` requests, 32 at a time, and wait for all of them."""
        asyncio.run(self._run(count))

    async def _run(self, count: int) -> None:
        gate = asyncio.Semaphore(CONCURRENCY)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONCURRENCY)
        async with httpx.AsyncClient(base_url=self.server.base_url, timeout=200, limits=limits) as http:

            async def one(path: str, body: dict[str, Any], leaves_after_s: float | None) -> None:
                async with gate:
                    try:
                        async with asyncio.timeout(leaves_after_s):
                            end = await _send(http, path, body)
                    except TimeoutError:
                        end = LEFT
                    self.ends[end] += 1

            await asyncio.gather(*(one(*self._draw(number)) for number in range(count)))

    def _draw(self, number: int) -> tuple[str, dict[str, Any], float | None]:
        """Return path, body and after how many seconds the client leaves, if it does."""
        draw = self.random
        leaves = draw.random() < 0.35
        body: dict[str, Any] = {
            "model": self.server.model,
            "stream": draw.random() < 0.6,
            "max_tokens": 400 if leaves else draw.choice([1, 2, 8, 30, 60]),
            "ignore_eos": True,
            "temperature": draw.choice([0, 0.7, 1.3]),
            "seed": draw.choice([None, number]),
            "n": draw.choice([1, 1, 1, 2, 3]),
            "stop": draw.choice([None, None, "xyz", ["q", "unheard of"]]),
            "presence_penalty": draw.choice([0, 0, 0.5]),
        }
        if draw.random() < 0.1:  # one that is refused: its prompt is too long
            body |= {"prompt": [1] * 600}
        elif draw.random() < 0.3:
            text = "the hat " * draw.randint(1, 12)
            logprobs = draw.choice([{}, {"logprobs": True, "top_logprobs": 4}])
            body |= {"messages": [{"role": "user", "content": text}], **logprobs}
            return "/v1/chat/completions", body, draw.uniform(0, 1) if leaves else None
        else:
            shared = [7] * draw.choice([0, 32, 64])
            body["prompt"] = [*shared, *(draw.randrange(250) for _ in range(draw.choice([1, 5, 20, 60])))]
            body["logprobs"] = draw.choice([None, None, 2])
            body["echo"] = draw.random() < 0.2
        return "/v1/completions", body, draw.uniform(0, 1) if leaves else None


async def _send(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """Send one request, read all of its answer, and say how it ended."""
    if not body["stream"]:
        response = await http.post(path, json=body)
        return "whole" if response.status_code == 200 else f"status {response.status_code}"
    async with http.stream("POST", path, json=body) as response:
        lines = [line async for line in response.aiter_lines() if line]
    if response.status_code != 200:
        return f"status {response.status_code}"
    return "streamed" if lines[-1] == "data: [DONE]" and "error" not in lines[-2] else f"broken: {lines[-2:]}"


@pytest.mark.slow
def test_two_hundred_requests_leave_nothing_behind(tiny_llama: Path) -> None:
    """All end, no block is kept, and no process has grown by a twentieth since the fiftieth."""
    flags = ("-tp", "2", "--kv-cache-memory-bytes", str(CACHE_BYTES), "--max-num-seqs", "24")
    with LiveServer(str(tiny_llama), *flags) as server:
        load = Load(server, seed=1)
        load.run(WARM)
        warm = settled_memory(server)
        load.run(ALL - WARM)
        end = settled_memory(server)
        metrics = server.metrics()
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in server.processes().values()]
        descriptors = {
            name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in server.processes().items()
        }

        assert server.healthy()
    assert not any(" /dev/shm/" in text or " /SYSV" in text for text in maps)
    assert sum(load.ends.values()) == ALL
    assert load.ends.keys() <= {"whole", "streamed", "status 400", LEFT}, load.ends
    assert load.ends[LEFT] > 20
    assert load.ends["streamed"] > 20
    assert load.ends["whole"] > 20
    assert metrics["num_preemptions_total"] > 0
    assert metrics["prefix_cache_hits_total"] > 0
    assert warm.keys() == end.keys() == {"front end", "engine core", "worker 0", "worker 1"}
    for name, before in warm.items():
        growth = end[name].own - before.own
        assert abs(growth) < 0.05 * before.whole, f"{name}: {before} → {end[name]}"
        assert descriptors[name] < 100


def settled_memory(server: LiveServer) -> dict[str, Memory]:
    """Wait until nothing runs, see that no block is held, and measure."""
    wait_until(lambda: is_idle(server.metrics()), what="an idle engine")
    metrics = server.metrics()
    assert is_idle(metrics)
    assert metrics["kv_cache_usage_perc"] == 0
    return {name: memory_of(pid) for name, pid in server.processes().items()}


def is_idle(metrics: dict[str, float]) -> bool:
    return metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
