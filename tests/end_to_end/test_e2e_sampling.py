"""The random stream of a request depends on its seed and position only, on a real server under load."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from live import LiveServer

NUM_TOKENS = 40


def sample(server: LiveServer, prompt: list[int], **fields: Any) -> list[list[int]]:
    """The ids of each choice."""
    answer = server.complete(prompt, max_tokens=NUM_TOKENS, ignore_eos=True, return_token_ids=True, **fields)
    return [choice["token_ids"] for choice in answer["choices"]]


def test_same_seed_same_tokens_alone_and_among_batch_mates(tiny_server: LiveServer) -> None:
    """Whatever the others ask for, and whenever they come and go."""
    wishes: list[dict[str, Any]] = [
        {"seed": 11, "temperature": 1.0},
        {"seed": 11, "temperature": 0.7, "top_p": 0.9, "top_k": 40},
        {"seed": 2**63 - 1, "temperature": 1.5, "min_p": 0.02, "n": 2},
        {"seed": 0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"seed": 5, "logit_bias": {"65": 3.0}, "logprobs": 3},
    ]
    prompts = [[(n * 31 + i) % 250 for i in range(4 + 9 * n)] for n in range(len(wishes))]
    alone = [sample(tiny_server, prompt, **wish) for prompt, wish in zip(prompts, wishes, strict=True)]

    def mate(n: int) -> list[list[int]]:
        return sample(tiny_server, [random.randrange(250) for _ in range(random.randint(1, 90))], temperature=1.2)

    for _ in range(2):
        with ThreadPoolExecutor(24) as pool:
            mates = [pool.submit(mate, n) for n in range(30)]
            again = [pool.submit(sample, tiny_server, p, **w) for p, w in zip(prompts, wishes, strict=True)]
            assert [future.result() for future in again] == alone
            assert all(len(future.result()[0]) == NUM_TOKENS for future in mates)


def test_choices_and_seeds_differ(tiny_server: LiveServer) -> None:
    """n choices of one seed, and one choice of n seeds, are all different."""
    choices = sample(tiny_server, [1, 2, 3], seed=1, n=4)
    seeds = [sample(tiny_server, [1, 2, 3], seed=seed)[0] for seed in (1, 20, 300, -4)]

    assert len({tuple(ids) for ids in [*choices, *seeds[1:]]}) == 7
    assert seeds[0] == choices[0]


def test_without_a_seed_requests_differ(tiny_server: LiveServer) -> None:
    """Callers who name no seed get another answer each time."""
    answers = [sample(tiny_server, [1, 2, 3])[0] for _ in range(3)]

    assert len({tuple(ids) for ids in answers}) == 3
