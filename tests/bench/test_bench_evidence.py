"""What a difference is worth: chance is not called a difference, a difference is not called chance."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from benchmarks.evidence import chance, fewest_rounds, judge


def noisy(factor: float, *, rounds: int, spread: float, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [factor * math.exp(generator.gauss(0, spread)) for _ in range(rounds)]


def test_the_chance_is_that_of_coins():
    """By hand: all ways to flip three signs, of which only the one seen is as far from zero."""
    logs = [math.log(r) for r in (1.1, 1.2, 1.3)]
    ways = [sum(s * x for s, x in zip(signs, logs, strict=True)) for signs in itertools.product((1, -1), repeat=3)]

    assert chance([1.1, 1.2, 1.3]) == pytest.approx(sum(way >= sum(logs) - 1e-12 for way in ways) / 8) == 1 / 8
    assert chance([1 / 1.1, 1 / 1.2, 1 / 1.3]) == 1.0
    assert chance([1.0] * 12) == 1.0
    assert chance([1.1, 1 / 1.1]) == pytest.approx(3 / 4)


def test_many_rounds_are_drawn_instead_of_counted():
    """The same answer to two digits, and never zero."""
    few, many = noisy(1.02, rounds=16, spread=0.05, seed=3), noisy(1.02, rounds=17, spread=0.05, seed=3)

    assert many[:16] == few
    assert chance(many) == pytest.approx(chance(few), abs=0.1)
    assert 0 < chance([2.0] * 40) < 1e-4


def test_a_slowdown_is_found_and_named():
    """Eight per cent within three per cent of noise, among figures that are the same."""
    ratios = {name: noisy(1.0, rounds=12, spread=0.03, seed=seed) for seed, name in enumerate("abcdefg")}
    found = judge({**ratios, "slow": noisy(1.08, rounds=12, spread=0.03, seed=9)})

    assert {name: f.verdict for name, f in found.items()} == {**dict.fromkeys("abcdefg", "same"), "slow": "slower"}
    assert found["slow"].median == pytest.approx(1.08, abs=0.03)
    assert found["slow"].lowest <= found["slow"].median <= found["slow"].highest


def test_a_gain_is_no_slowdown():
    """It is told, as what it is."""
    assert judge({"x": noisy(0.8, rounds=12, spread=0.03, seed=1)})["x"].verdict == "faster"


def test_what_its_spread_explains_is_the_same():
    """A third more in the median, in rounds that differ by more than that."""
    found = judge({"x": [1.33, 0.5, 2.0, 1.4, 0.6, 1.35, 1.3, 0.7, 1.9, 0.55, 1.36, 1.34]})["x"]

    assert found.median > 1.3
    assert found.verdict == "same"


def test_what_is_small_is_nobodys_concern():
    """One per cent in every round is certain, and within the tolerance."""
    ratios = {"x": [1.01] * 12}

    assert judge(ratios)["x"].verdict == "same"
    assert judge(ratios, tolerance=0.005)["x"].verdict == "slower"


def test_false_alarms_are_as_rare_as_promised():
    """Of 300 runs with eight figures each and nothing but noise, about three may cry wolf."""
    runs = [
        judge({str(i): noisy(1.0, rounds=12, spread=0.1, seed=1000 * run + i) for i in range(8)}, tolerance=0.0)
        for run in range(300)
    ]

    assert sum(any(f.verdict != "same" for f in found.values()) for found in runs) <= 9


def test_too_few_rounds_are_known_beforehand():
    """With one round fewer even a thousandfold slowdown in each could be chance."""
    rounds = fewest_rounds(8)

    def verdict(count: int) -> str:
        return judge({str(i): [1000.0] * count if i == 0 else [1.0] * count for i in range(8)})["0"].verdict

    assert verdict(rounds) == "slower"
    assert verdict(rounds - 1) == "same"
