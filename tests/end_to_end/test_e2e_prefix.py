"""A prefix that many requests share, through a real server: how many prompt tokens were computed for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from live import LiveServer

BLOCK_SIZE = 16
#: Twenty blocks, which seven steps of the server below compute; the last of these has room for others.
NUM_SHARED = 20 * BLOCK_SIZE


def prompts(salt: int) -> list[list[int]]:
    """Eight that differ in their last five tokens; another salt is another prefix."""
    shared = [(7 * i * i + 3 * i + salt) % 250 for i in range(NUM_SHARED)]
    return [[*shared, i, 1, 2, 3, 4] for i in range(8)]


def test_cold_requests_wait_for_a_prefix_that_is_being_computed(tiny_llama: Path) -> None:
    """Of eight that come together, in one body or from as many clients, one computes the prefix."""
    wish = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    counts = []
    with LiveServer(str(tiny_llama), "--max-num-batched-tokens=48", f"--block-size={BLOCK_SIZE}") as server:

        def count() -> None:
            metrics = server.metrics()
            counts.append((metrics["prompt_tokens_total"], metrics["prefix_cache_hits_total"]))

        server.complete(prompts(0), **wish)
        count()
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda prompt: server.complete(prompt, **wish), prompts(1)))
        count()

    asked = 8 * (NUM_SHARED + 5)
    computed = [prompt_tokens - found for prompt_tokens, found in counts]
    assert [prompt_tokens for prompt_tokens, _ in counts] == [asked, 2 * asked]
    assert computed == [NUM_SHARED + 8 * 5, 2 * (NUM_SHARED + 8 * 5)]
