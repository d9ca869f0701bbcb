"""Sampling through scheduler and worker: seeds, penalties, bias, minimum lengths, unusable logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker_runs import Engine, greedy, request_of

PROMPT = [(7 * i + 3) % 250 for i in range(20)]
OTHERS = [[i, 2 * i, 90 + i, 17] * 5 for i in range(1, 8)]


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    """A small engine that the tests of this file share."""
    return Engine(tiny_llama, max_model_len=160, num_blocks=120)


def test_a_seed_gives_its_tokens_in_any_company(engine: Engine, tiny_llama: Path) -> None:
    """Alone, among others with other wishes, cut in chunks or preempted: the same random tokens."""
    wishes = {"temperature": 0.9, "top_p": 0.95, "top_k": 60, "seed": 11, "max_tokens": 20}
    company = [
        request_of(f"o{i}", prompt, temperature=0.3 * i, seed=i, max_tokens=25, presence_penalty=0.2 * i)
        for i, prompt in enumerate(OTHERS)
    ]

    alone = engine.outputs([request_of("a", PROMPT, **wishes)])["a"]
    among = engine.outputs([*company, request_of("a", PROMPT, **wishes)])["a"]
    small = Engine(tiny_llama, max_model_len=64, num_blocks=8, max_num_batched_tokens=9)
    cramped = small.outputs([*company, request_of("a", PROMPT, **wishes)])["a"]
    other_seed = engine.outputs([request_of("a", PROMPT, **{**wishes, "seed": 12})])["a"]

    assert small.num_preemptions > 0
    assert among == alone
    assert cramped == alone
    assert other_seed != alone


def test_no_seed_means_the_servers(engine: Engine) -> None:
    """A request without a seed draws what the server's seed draws."""
    without, explicit = (
        engine.outputs([request_of("a", PROMPT, max_tokens=12, seed=seed)])["a"] for seed in (None, 0)
    )

    assert without == explicit


def recounted(engine: Engine, prompt: list[int], *, frequency: float, presence: float) -> list[int]:
    """Decode greedily, one request per token, counting the whole output anew for each.

    Log-probabilities are logits shifted by a constant, and these two penalties are subtracted.
    """
    output: list[int] = []
    for _ in range(16):
        [update] = engine.run([greedy("x", prompt + output, max_tokens=1, logprobs=20)])["x"]
        entry = update.logprobs[0]
        scores = {
            token: logprob - frequency * output.count(token) - presence * (token in output)
            for token, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        }
        output.append(max(scores, key=scores.__getitem__))
    return output


def test_presence_and_frequency_penalties_count_the_output(engine: Engine) -> None:
    """Kept up token by token, they give what recounting the whole output gives."""
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.7}

    together = engine.outputs([
        greedy("a", PROMPT, max_tokens=16, **penalties), greedy("b", OTHERS[0], max_tokens=16),
        greedy("c", OTHERS[1], max_tokens=16, **penalties),
    ])  # fmt: skip

    for name, prompt in (("a", PROMPT), ("c", OTHERS[1])):
        assert together[name] == recounted(engine, prompt, frequency=0.7, presence=1.5)


def test_a_strong_repetition_penalty_avoids_prompt_and_output(engine: Engine) -> None:
    """Under a huge penalty no token of the prompt comes back while its logit was positive, and none comes twice."""
    plain = engine.outputs([greedy("a", PROMPT, max_tokens=30)])["a"]
    output = engine.outputs([greedy("a", PROMPT, max_tokens=30, repetition_penalty=1e6)])["a"]

    assert len(set(plain)) < 30
    assert len(set(output)) == 30
    assert not set(output) & set(PROMPT)


def test_logit_bias_chooses_and_bans(engine: Engine) -> None:
    """+100 forces a token, -100 removes the natural one; ids outside the vocabulary have no effect."""
    natural = engine.outputs([greedy("a", PROMPT, max_tokens=1)])["a"][0]

    outputs = engine.outputs([
        greedy("forced", PROMPT, max_tokens=3, logit_bias={77: 100.0, 10**6: 100.0}),
        greedy("banned", PROMPT, max_tokens=1, logit_bias={natural: -100.0}),
    ])  # fmt: skip

    assert outputs["forced"] == [77, 77, 77]
    assert outputs["banned"] != [natural]


def test_min_tokens_puts_off_every_end(engine: Engine) -> None:
    """End-of-sequence and stop ids are not even sampled before the minimum, and end the request after it."""
    plain = engine.outputs([greedy("a", PROMPT, max_tokens=12)])["a"]
    ends = {"eos": [plain[2]], "stop_token_ids": [plain[4]], "max_tokens": 60}

    short = engine.run([greedy("a", PROMPT, **ends)])["a"]
    long = engine.run([greedy("a", PROMPT, min_tokens=8, **ends)])["a"]
    ignoring = engine.outputs([greedy("a", PROMPT, **{**ends, "ignore_eos": True, "stop_token_ids": []})])["a"]

    assert [t for update in short for t in update.new_token_ids] == plain[:3]
    assert (short[-1].finish_reason, short[-1].stop_reason) == ("stop", None)
    output = [t for update in long for t in update.new_token_ids]
    assert not {plain[2], plain[4]} & set(output[:8])
    assert len(output) >= 8
    assert ignoring[:12] == plain


def test_logits_without_meaning_end_their_request_only(tiny_llama: Path) -> None:
    """A weight that is NaN for one token: its request ends with an error that says so, the other one is served."""
    # The op's reference: an implementation may have packed the weight and given the layer's own up.
    engine = Engine(tiny_llama, max_model_len=64, custom_ops=["-linear"])
    with torch.no_grad():
        engine.worker.model.model.embed_tokens.weight[250] = float("nan")

    updates = engine.run([greedy("sick", [1, 250], max_tokens=4), greedy("well", PROMPT, max_tokens=4)])

    assert updates["sick"][-1].finish_reason == "error"
    assert "NaN" in str(updates["sick"][-1].error)
    assert len(updates["well"]) == 4
