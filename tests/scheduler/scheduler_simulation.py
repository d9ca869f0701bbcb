"""The scheduler in simulated time: steps take what a cost function says, and every token's moment is noted.

The same arrivals and costs give the same moments, to the bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable

from scheduler_fakes import make_config, make_request

from graftlm.contracts.step import StepPlan, StepResult
from graftlm.scheduler import Scheduler


@dataclasses.dataclass
class Costs:
    """Milliseconds of a step, as two cores need them for a small model."""

    step_ms: float = 8.0
    row_ms: float = 1.4
    token_ms: float = 1.1
    prefill_step_ms: float = 2.0
    """what a step with a prefill costs more as such"""
    context_tokens: int = 3000
    """behind so many tokens a prefill token costs twice as much"""
    noise: float = 0.03
    slowdown: Callable[[float], float] = lambda now_s: 1.0
    generator: random.Random = dataclasses.field(default_factory=lambda: random.Random(0))

    def step_s(self, plan: StepPlan, now_s: float) -> float:
        total = 0.0
        starts = {r.request_id: r.num_computed_tokens for r in (*plan.new, *plan.continued)}
        prefills = {r: count for r, count in plan.num_scheduled_tokens.items() if count > 1}
        num_rows = len(plan.num_scheduled_tokens) - len(prefills)
        if num_rows:
            total += self.step_ms + self.row_ms * num_rows
        if prefills:
            total += self.prefill_step_ms if num_rows else self.step_ms
        for request_id, count in prefills.items():
            total += self.token_ms * count * (1 + (starts[request_id] + count / 2) / self.context_tokens)
        return total / 1e3 * self.slowdown(now_s) * self.generator.gauss(1, self.noise)


@dataclasses.dataclass
class Stream:
    arrival_s: float
    moments_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.moments_s[0] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.moments_s)]


class Simulation:
    """Drives a real scheduler; requests may be added at any moment, by `when_done` too."""

    def __init__(
        self,
        *,
        itl_slo: float | None = None,
        costs: Costs | None = None,
        token_budget: int = 2048,
        max_num_seqs: int = 64,
    ) -> None:
        config = make_config(max_num_seqs=max_num_seqs, token_budget=token_budget, prefix_caching=False)
        config.scheduler.itl_slo = itl_slo
        self.scheduler = Scheduler(config, num_blocks=20_000, block_size=16)
        self.costs = costs or Costs()
        self.now_s = 0.0
        self.streams: dict[str, Stream] = {}
        self.plans: list[StepPlan] = []
        self.step_times_s: list[float] = []
        self.when_done: Callable[[str], None] = lambda request_id: None
        self._arrivals: list[tuple[float, str, int, int]] = []

    def arrive(self, request_id: str, *, at_s: float, prompt: int, output: int) -> None:
        self._arrivals.append((at_s, request_id, prompt, output))
        self._arrivals.sort()

    def run(self, *, until_s: float = 3600.0) -> None:
        while self.now_s < until_s and (self._arrivals or self.scheduler.has_unfinished):
            if not self.scheduler.has_unfinished:
                self.now_s = max(self.now_s, self._arrivals[0][0])
            self._take_arrivals()
            self._step()

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            at_s, request_id, prompt, output = self._arrivals.pop(0)
            self.streams[request_id] = Stream(at_s)
            self.scheduler.add_request(make_request(request_id, [1] * prompt, max_tokens=output))

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        step_s = self.costs.step_s(plan, self.now_s)
        self.now_s += step_s
        known = {r: self.scheduler._requests[r] for r in plan.num_scheduled_tokens}
        sampled = {r: [1] for r, request in known.items() if request.num_computed_tokens == request.num_tokens}
        result = StepResult(step_id=plan.step_id, sampled_token_ids=sampled)
        updates = self.scheduler.update(plan, result, step_time_s=step_s)
        self.plans.append(plan)
        self.step_times_s.append(step_s)
        for update in updates:
            self.streams[update.request_id].moments_s.append(self.now_s)
            if update.finish_reason is not None:
                self.when_done(update.request_id)

    def gaps_s(self, prefix: str = "") -> list[float]:
        return [gap for name, s in self.streams.items() if name.startswith(prefix) for gap in s.gaps_s]

    def mean_ttft_s(self, prefix: str = "") -> float:
        return statistics.fmean(s.ttft_s for n, s in self.streams.items() if n.startswith(prefix) and s.moments_s)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
