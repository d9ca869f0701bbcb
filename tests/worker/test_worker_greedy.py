"""Scheduler and worker together give the tokens of transformers, however the work is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker_runs import Engine, Reference, assert_equal_while_sure, greedy, reference

MAX_TOKENS = 24
PROMPTS = [
    [65, 66, 67],
    [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 200],
    [200],
    [(7 * i * i + 3 * i) % 250 for i in range(61)],
    [(5 * i + 1) % 250 for i in range(33)],
    [(5 * i + 1) % 250 for i in range(33)] + [9, 8, 7],
    [1, 1, 1, 1, 1, 1, 1, 1],
    [(11 * i) % 251 for i in range(16)],
]


@pytest.fixture(scope="module", params=["llama", "opt"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """Both architectures in turn."""
    path: Path = request.getfixturevalue(f"tiny_{request.param}")
    return path


@pytest.fixture(scope="module")
def references(checkpoint: Path) -> list[Reference]:
    """What transformers answers to each prompt."""
    return reference(checkpoint, PROMPTS, max_tokens=MAX_TOKENS)


def requests() -> list[object]:
    return [greedy(f"r{i}", prompt, max_tokens=MAX_TOKENS) for i, prompt in enumerate(PROMPTS)]


def test_requests_alone_equal_the_reference(checkpoint: Path, references: list[Reference]) -> None:
    """One request at a time, also after others have left their traces in cache and batch."""
    engine = Engine(checkpoint, max_model_len=128)
    outputs = {}
    for request in requests():
        outputs.update(engine.outputs([request]))

    assert_equal_while_sure(outputs, references)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 32},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"block_size": 8, "enable_prefix_caching": False},
    ],
    ids=["batched", "budget 32", "budget 7", "no prefix cache"],
)
def test_batched_requests_equal_the_reference(
    checkpoint: Path, references: list[Reference], options: dict[str, object]
) -> None:
    """All requests side by side, in one chunk or many."""
    engine = Engine(checkpoint, max_model_len=128, **options)

    assert_equal_while_sure(engine.outputs(requests()), references)


def test_preempted_requests_equal_the_reference(checkpoint: Path, references: list[Reference]) -> None:
    """A cache in which hardly two requests fit: many are preempted and computed again."""
    engine = Engine(checkpoint, max_model_len=96, num_blocks=8, max_num_batched_tokens=32)

    outputs = engine.outputs(requests())

    assert engine.num_preemptions > 0
    assert_equal_while_sure(outputs, references)


def test_prefix_hits_equal_the_reference(checkpoint: Path, references: list[Reference]) -> None:
    """The second time each prompt's full blocks come from the cache."""
    engine = Engine(checkpoint, max_model_len=128)
    engine.outputs(requests())

    updates = engine.run(requests())

    cached = [updates[f"r{i}"][-1].num_cached_tokens for i in range(len(PROMPTS))]
    assert cached == [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]
    outputs = {name: [t for update in of for t in update.new_token_ids] for name, of in updates.items()}
    assert_equal_while_sure(outputs, references)


def test_logprobs_equal_the_reference(checkpoint: Path, references: list[Reference]) -> None:
    """Prompt and output log-probabilities, with the best ones and ranks, from chunks of seven tokens."""
    engine = Engine(checkpoint, max_model_len=128, max_num_batched_tokens=7)
    wanting = [
        greedy(f"r{i}", prompt, max_tokens=4, logprobs=i % 4, prompt_logprobs=(i + 1) % 4)
        for i, prompt in enumerate(PROMPTS)
    ]

    updates = engine.run(wanting)

    for index, (prompt, expected) in enumerate(zip(PROMPTS, references, strict=True)):
        of = updates[f"r{index}"]
        entries = [*of[0].prompt_logprobs, *(entry for update in of for entry in update.logprobs)]
        token_ids = [*prompt[1:], *(t for update in of for t in update.new_token_ids)]
        assert [entry.token_id for entry in entries] == token_ids
        for place, entry in enumerate(entries):
            if place >= len(prompt) - 1 + expected.num_sure:
                break
            exact = expected.logprobs[place]
            num_top = (index + 1) % 4 if place < len(prompt) - 1 else index % 4
            assert abs(entry.logprob - float(exact[entry.token_id])) < 1e-3
            assert len(entry.top_ids) == num_top
            torch.testing.assert_close(
                torch.tensor(entry.top_logprobs), exact.topk(num_top).values, atol=1e-3, rtol=0
            )
            better = int((exact > exact[entry.token_id] + 1e-3).sum())
            at_least = int((exact > exact[entry.token_id] - 1e-3).sum())
            assert better + 1 <= entry.rank <= max(at_least, better + 1)
