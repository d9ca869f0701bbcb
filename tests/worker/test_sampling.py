"""Sampling against exact probabilities, plain references, and itself in other company."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from graftlm.ops.sampling import LogitEntries, PenaltyEntries, Sampler, SamplingInputs, choose, uniform

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.7, 0.0, -3.0, 1.0, 0.5])
DRAWS = 20_000
PINNED = ["0.737518168192", "0.616668085461", "0.983603926333", "0.779590406006"]  # from a scalar SplitMix64


def uniforms(seed: int, count: int = DRAWS) -> torch.Tensor:
    return torch.from_numpy(uniform(np.full(count, seed, np.uint64), np.arange(count)))


def random_inputs(count: int = DRAWS, *, seed: int = 7, **parameters: float) -> SamplingInputs:
    inputs = SamplingInputs(
        temperature=torch.full((count,), parameters.get("temperature", 1.0)), uniforms=uniforms(seed, count)
    )
    if "top_k" in parameters:
        inputs.top_k = torch.full((count,), int(parameters["top_k"]))
    if "top_p" in parameters:
        inputs.top_p = torch.full((count,), parameters["top_p"], dtype=torch.float64)
    if "min_p" in parameters:
        inputs.min_p = torch.full((count,), parameters["min_p"])
    return inputs


def exact_probabilities(
    logits: list[float], *, temperature: float = 1.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> list[float]:
    """The definition, in plain Python: each filter sees what the one before it left, renormalized."""

    def normalized(weights: dict[int, float]) -> dict[int, float]:
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    kept = normalized({token: math.exp(x / temperature) for token, x in enumerate(logits)})
    best = max(kept.values())
    kept = normalized({token: p for token, p in kept.items() if p >= min_p * best})
    if top_k:
        least = sorted(kept.values(), reverse=True)[:top_k][-1]
        kept = normalized({token: p for token, p in kept.items() if p >= least})
    total, least_in, nucleus = 0.0, 1.0, {}
    for token, p in sorted(kept.items(), key=lambda item: -item[1]):
        if total >= top_p and p < least_in:
            break
        nucleus[token] = p
        total, least_in = total + p, p
    kept = normalized(nucleus)
    return [kept.get(token, 0.0) for token in range(len(logits))]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"top_p": 0.01},
        {"min_p": 0.3},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.8},
        {"temperature": 0.8, "top_k": 7, "top_p": 0.95, "min_p": 0.1},
        {"top_k": 100},
    ],
)
def test_draws_follow_the_exact_probabilities(parameters: dict[str, float]) -> None:
    """Twenty thousand positions of one seed: chi-square against the definition, nothing filtered is drawn."""
    expected = exact_probabilities(LOGITS.tolist(), **parameters)  # type: ignore[arg-type]

    drawn = Sampler()(LOGITS.repeat(DRAWS, 1), random_inputs(**parameters)).token_ids

    counts = torch.bincount(drawn, minlength=len(expected)).tolist()
    assert all(count == 0 for count, p in zip(counts, expected, strict=True) if p == 0)
    possible = [(count, p * DRAWS) for count, p in zip(counts, expected, strict=True) if p > 0]
    chi_square = sum((count - e) ** 2 / e for count, e in possible)
    freedom = len(possible) - 1
    assert chi_square <= freedom + 4 * math.sqrt(2 * freedom)  # about one in ten thousand is above


def test_uniform_numbers_are_uniform_and_neighbouring_streams_differ() -> None:
    """Chi-square over a hundred bins, for several seeds; no correlation between neighbouring seeds or positions."""
    streams = [uniforms(seed).numpy() for seed in (0, 1, 2, 2**63, 2**64 - 1)]

    for stream in streams:
        assert stream.min() >= 0 and stream.max() < 1
        counts = np.bincount((stream * 100).astype(int), minlength=100)
        assert ((counts - DRAWS / 100) ** 2 / (DRAWS / 100)).sum() < 99 + 4 * math.sqrt(2 * 99)
        assert abs(np.corrcoef(stream[1:], stream[:-1])[0, 1]) < 0.03
    for first, second in itertools.pairwise(streams):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_a_number_depends_on_its_seed_and_position_only() -> None:
    """Drawn alone or in any company, a number is the same; it is part of the interface, so it is pinned."""
    together = uniform(np.array([3, 3, 9, 3], np.uint64), np.array([0, 5, 5, 2**40]))
    alone = [uniform(np.array([s], np.uint64), np.array([p]))[0] for s, p in ((3, 0), (3, 5), (9, 5), (3, 2**40))]

    assert together.tolist() == alone
    assert [f"{number:.12f}" for number in alone] == PINNED


def test_a_row_is_sampled_alike_in_any_company() -> None:
    """Rows with all kinds of parameters: each one alone gives the token that it gives in the batch."""
    generator = torch.Generator().manual_seed(0)
    rows, vocab = 24, 1500
    logits = torch.randn(rows, vocab, generator=generator) * 3
    inputs = SamplingInputs(
        temperature=torch.rand(rows, generator=generator) * (torch.arange(rows) % 3 != 0) * 2,
        uniforms=torch.rand(rows, generator=generator, dtype=torch.float64),
        top_k=torch.randint(0, 40, (rows,), generator=generator) * (torch.arange(rows) % 2),
        top_p=torch.where(torch.arange(rows) % 5 < 3, 0.9, 1.0).double(),
        min_p=0.05 * (torch.arange(rows) % 4 == 1),
    )
    sampler = Sampler()

    together = sampler(logits.clone(), inputs).token_ids.tolist()
    alone = []
    for row in range(rows):
        one = {
            name: getattr(inputs, name)[row : row + 1]
            for name in ("temperature", "uniforms", "top_k", "top_p", "min_p")
        }
        alone += sampler(logits[row : row + 1].clone(), SamplingInputs(**one)).token_ids.tolist()

    assert together == alone


@pytest.mark.parametrize("top_k", [0, 700])
def test_a_wide_nucleus_is_found_beyond_the_first_candidates(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many candidates are looked at first changes no token, even where most of them are in the nucleus."""
    logits = torch.randn(200, 2000, generator=torch.Generator().manual_seed(1))
    inputs = random_inputs(200, top_p=0.97, top_k=top_k)

    default = Sampler()(logits.clone(), inputs).token_ids
    monkeypatch.setattr(choose, "_NUCLEUS_CANDIDATES", (4,))
    few = Sampler()(logits.clone(), inputs).token_ids
    monkeypatch.setattr(choose, "_NUCLEUS_CANDIDATES", ())
    all_of_them = Sampler()(logits.clone(), inputs).token_ids

    assert torch.equal(default, few)
    assert torch.equal(default, all_of_them)


def test_greedy_rows_take_the_best_token_and_leave_the_others_random() -> None:
    """A mixed batch: temperature 0 is arg-max whatever the uniform number."""
    inputs = SamplingInputs(
        temperature=torch.tensor([0.0, 1.0, 0.0]), uniforms=torch.tensor([0.99, 0.9999, 0.5]).double()
    )

    token_ids = Sampler()(LOGITS.repeat(3, 1), inputs).token_ids.tolist()

    assert token_ids == [0, 7, 0]


def test_the_extremes_of_a_uniform_number_hit_possible_tokens() -> None:
    """0 and the largest number below 1 choose the first and the last token of weight, never one of weight 0."""
    logits = torch.tensor([float("-inf"), 1.0, 2.0, float("-inf")])
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)

    token_ids = Sampler()(logits.repeat(2, 1), SamplingInputs(temperature=torch.ones(2), uniforms=ends)).token_ids

    assert token_ids.tolist() == [1, 2]


@pytest.mark.parametrize("vocab", [5, 256, 700, 1024])
def test_best_and_drawn_tokens_are_those_of_plain_arg_max_and_cumsum(vocab: int) -> None:
    """Working in pieces changes nothing, whatever the size of the vocabulary; the first of equals is best."""
    logits = (torch.randn(300, vocab, generator=torch.Generator().manual_seed(3)) * 2).round(decimals=1)
    inputs = random_inputs(300)
    assert inputs.uniforms is not None
    weights = (logits - logits.amax(-1, keepdim=True)).exp().double().cumsum(-1)
    plain = torch.searchsorted(weights, inputs.uniforms[:, None] * weights[:, -1:], right=True).squeeze(1)

    assert torch.equal(Sampler()(logits.clone(), SamplingInputs()).token_ids, logits.argmax(-1))
    assert torch.equal(Sampler()(logits.clone(), inputs).token_ids, plain)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_meaning_are_reported_and_touch_no_other_row(temperature: float) -> None:
    """NaN, +inf and nothing-but--inf are flagged; -inf beside finite logits is fine."""
    inf = float("inf")
    logits = LOGITS.repeat(5, 1)
    logits[1] = -inf
    logits[2, 3], logits[3, 3], logits[4, 3] = float("nan"), inf, -inf
    inputs = SamplingInputs()
    if temperature:
        inputs = random_inputs(5, top_p=0.9, top_k=5, min_p=0.01)

    sampled = Sampler()(logits.clone(), inputs)
    alone = Sampler()(
        logits[:1].clone(), random_inputs(1, top_p=0.9, top_k=5, min_p=0.01) if temperature else inputs
    )

    assert sampled.usable.tolist() == [True, False, False, False, True]
    assert sampled.token_ids[0] == alone.token_ids[0]
    assert all(0 <= token < 8 for token in sampled.token_ids.tolist())


def test_penalties_follow_their_definitions() -> None:
    """Sparse entries give what the dense formulas give."""
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    prompts, outputs = [[1, 1, 2], [0], []], [[2, 3, 3], [], [5, 5, 5]]
    repetition, frequency, presence = [1.3, 0.7, 1.0], [0.2, 0.1, 0.5], [0.4, 0.3, -0.2]
    expected = logits.clone()
    for row in range(3):
        for token in range(8):
            count, x = outputs[row].count(token), float(logits[row, token])
            if token in prompts[row] or count:
                x = x / repetition[row] if x > 0 else x * repetition[row]
            expected[row, token] = x - frequency[row] * count - presence[row] * (count > 0)
    seen = [(row, token) for row in range(3) for token in sorted({*prompts[row], *outputs[row]})]
    of = [row for row, _ in seen]
    inputs = SamplingInputs(
        penalties=PenaltyEntries(
            rows=torch.tensor(of),
            token_ids=torch.tensor([token for _, token in seen]),
            output_counts=torch.tensor([float(outputs[row].count(token)) for row, token in seen]),
            repetition=torch.tensor(repetition)[of],
            frequency=torch.tensor(frequency)[of],
            presence=torch.tensor(presence)[of],
        )
    )

    adjusted = Sampler().adjust_logits(logits.clone(), inputs)

    torch.testing.assert_close(adjusted, expected)


def test_bias_and_forbidden_tokens_change_the_choice_but_not_the_log_probabilities() -> None:
    """A forbidden token is never chosen, a biased one may win; reported numbers are the model's own."""
    inputs = SamplingInputs(
        forbidden=LogitEntries(torch.tensor([0]), torch.tensor([0])),
        bias=LogitEntries(torch.tensor([1, 0]), torch.tensor([5, 0]), torch.tensor([50.0, 100.0])),
        logprob_rows=torch.tensor([1, 0]),
        num_top_logprobs=2,
    )

    sampled = Sampler()(LOGITS.repeat(2, 1), inputs)

    assert sampled.token_ids.tolist() == [3, 5]
    assert sampled.logprobs is not None
    exact = LOGITS.log_softmax(-1)
    torch.testing.assert_close(sampled.logprobs.logprobs, exact[[5, 3]])
    assert sampled.logprobs.ranks.tolist() == [8, 2]
    assert sampled.logprobs.top_ids.tolist() == [[0, 3], [0, 3]]
    torch.testing.assert_close(sampled.logprobs.top_logprobs, exact[[0, 3]].repeat(2, 1))
