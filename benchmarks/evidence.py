"""What a difference is worth: whether a series of paired ratios can be explained by its own spread.

Both sides are measured once in each round, one right after the other, and which comes first changes from round to
round. If nothing but chance parts them, each round's ratio could as well have been its inverse. The *sign-flip
test* asks how often a mean of log ratios as far from zero as the one seen would come about that way; with up to 16
rounds all 2ⁿ ways are counted. Several figures are judged together, slower and faster, so their probabilities are
held to Holm's limits: the chance that *any* of them is called different by accident stays below `family_error`.
What is smaller than `tolerance` is nobody's concern, however sure.

It measures nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

FAMILY_ERROR = 0.01
TOLERANCE = 0.03
_EXACT_ROUNDS = 16
_DRAWS = 100_000


class Finding(NamedTuple):
    """One figure. A ratio above 1 is more time, or less throughput, than the side it is compared with."""

    median: float
    lowest: float
    highest: float
    p_slower: float
    p_faster: float
    verdict: Literal["slower", "same", "faster"]


def chance(ratios: Sequence[float]) -> float:
    """Return the probability of ratios this far above 1 if which side is which were a coin's choice."""
    logs = np.log(np.asarray(ratios, dtype=float))
    rounds = len(logs)
    if rounds <= _EXACT_ROUNDS:
        ways = np.arange(2**rounds)[:, None] >> np.arange(rounds)[None, :] & 1  # [ways, rounds]
    else:  # the way that was seen is one of them
        drawn = np.random.default_rng(0).integers(0, 2, size=(_DRAWS, rounds))
        ways = np.vstack([np.zeros((1, rounds), dtype=drawn.dtype), drawn])
    means = ((1 - 2 * ways) * logs).mean(axis=1)  # [ways]
    return float(np.mean(means >= logs.mean() - 1e-12))


def judge(
    ratios: Mapping[str, Sequence[float]], *, family_error: float = FAMILY_ERROR, tolerance: float = TOLERANCE
) -> dict[str, Finding]:
    """Judge all figures together; each has one ratio for each round."""
    tests = {(name, way): chance([r**way for r in values]) for name, values in ratios.items() for way in (1, -1)}
    sure = _holm(tests, family_error)
    return {name: _finding(name, values, tests, sure, tolerance) for name, values in ratios.items()}


def _holm(tests: Mapping[tuple[str, int], float], family_error: float) -> set[tuple[str, int]]:
    """Return the tests that pass: the smallest must be below error/n, the next below error/(n-1), and so on."""
    passed = set()
    for place, (test, p) in enumerate(sorted(tests.items(), key=lambda item: item[1])):
        if p > family_error / (len(tests) - place):
            break
        passed.add(test)
    return passed


def _finding(
    name: str, values: Sequence[float], tests: Mapping[tuple[str, int], float], sure: set[tuple[str, int]],
    tolerance: float,
) -> Finding:  # fmt: skip
    median = statistics.median(values)
    verdict: Literal["slower", "same", "faster"] = "same"
    if (name, 1) in sure and median > 1 + tolerance:
        verdict = "slower"
    elif (name, -1) in sure and median < 1 / (1 + tolerance):
        verdict = "faster"
    return Finding(median, min(values), max(values), tests[name, 1], tests[name, -1], verdict)


def fewest_rounds(num_figures: int, *, family_error: float = FAMILY_ERROR) -> int:
    """Return how many rounds it takes before any difference can be told from chance at all."""
    return math.ceil(math.log2(2 * num_figures / family_error))
