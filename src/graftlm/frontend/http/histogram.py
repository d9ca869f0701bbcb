"""A histogram that is cheap to feed; it knows Prometheus' shape of one, and not what is measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts of values up to each bound. `observe` costs a binary search and no lock: one thread feeds it."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.documentation = documentation
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        """Return what Prometheus reads: counts up to and including each bound."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=list(labels))
        buckets, total = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(list(labels.values()), buckets=buckets, sum_value=self._sum)
        return family


def one_two_five(largest: int) -> list[float]:
    """Return the bounds 1, 2, 5, 10, … up to the first that is not below `largest`."""
    bounds: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            bounds.append(float(digit * power))
            if digit * power >= largest:
                return bounds
        power *= 10
