"""How much prefill a step may carry without keeping streams waiting; it has no clock and knows no memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graftlm.scheduler.request import Request
from graftlm.scheduler.step_costs import StepCosts

#: What a stream may wait, as a multiple of the usual, while nobody has asked for anything.
DEFAULT_ITL_SLO = 3.0
#: A stream is protected from this many tokens on.
#:
#: Requests that come in a burst would otherwise be prefilled in thin chunks beside the first of them, which starts
#: a moment earlier: everybody's first token would come late, for the sake of one stream that has hardly begun.
#: A few large steps before the streams run cost each of them at most a few long waits, at its very beginning.
SETTLED_TOKENS = 4

#: Share of the allowed delay that is planned for; the rest is for what no prediction knows.
#: A chunk of a few tokens, rounded up, may come nearer.
_PLANNED_SHARE, _LARGEST_SHARE = 0.75, 0.9
#: After this many steps with a bounded chunk one goes without, so that the usual decode time is known anew. Sooner
#: when a single token is too much, as it seems on a machine that has become slower.
_REMEASURE_AFTER, _REMEASURE_SOON_AFTER = 32, 8
#: Most steps in a row that go without a prefill in order to measure.
_MOST_MEASURING = 8
#: A bounded step has a multiple of so many tokens where that leaves it a prefill: a worker may keep ready what it
#: meets again in the same size.
_STEP_GRAIN = 4


@dataclasses.dataclass(slots=True)
class _StepMix:
    """What a planned step consists of."""

    num_rows: int = 0
    """requests that decode"""
    num_prefill_tokens: int = 0
    num_context_tokens: int = 0
    """how far the first prefill had come"""


class PrefillPacing:
    """Bounds the prefill tokens of steps that decode as well, so that no stream waits for them too long.

    A settled stream may wait `itl_slo` times the usual time of a step that only decodes. Without a wish that is
    three times, and only while at least as many requests decode as wait for their first token: else whole chunks
    serve the more of them sooner, and all of them faster. What steps cost is learned from their execution, which
    the caller reports; while nothing is reported, nothing is bounded.
    """

    def __init__(self, itl_slo: float | None) -> None:
        self.itl_slo = itl_slo or DEFAULT_ITL_SLO
        self._yields_to_more = itl_slo is None
        self._costs = StepCosts()
        self._mix = _StepMix()
        self._mixes: dict[int, _StepMix] = {}  # of plans whose execution was not reported yet
        self._has_observed = False
        self._num_bounded = 0
        self._remeasure_after = _REMEASURE_AFTER
        self._num_measuring = 0
        self._owed_tokens = 0.0  # what thin chunks have lost to rounding

    def begin_step(self, step_id: int, running: Sequence[Request], *, num_waiting: int, budget: int) -> int:
        """Return how many prefill tokens the step may carry, at most `budget`.

        At least 1, so that every prompt gets on; but now and then 0, in a step that is to measure the decodes.
        """
        self._mix = self._mixes[step_id] = _StepMix()
        num_rows, num_context_tokens, is_settled = 0, None, False
        for request in running:
            num_known = request.num_tokens - request.num_computed_tokens
            if num_known == 1:
                num_rows += 1
                is_settled = is_settled or request.num_output_tokens >= SETTLED_TOKENS
            elif num_known > 1 and num_context_tokens is None:
                num_context_tokens = request.num_computed_tokens
        num_waiting += len(running) - num_rows
        if not (is_settled and num_waiting and self._has_observed):
            return budget
        if self._yields_to_more and num_waiting > num_rows:
            return budget
        return self._limit(min(num_rows, budget), num_context_tokens or 0, budget)

    def _limit(self, num_rows: int, num_context_tokens: int, budget: int) -> int:
        usual_s = self._costs.decode_time_s(num_rows)
        if (
            usual_s is None or self._num_bounded >= self._remeasure_after
        ) and self._num_measuring < _MOST_MEASURING:
            self._num_measuring += 1
            return 0
        self._num_bounded += 1
        self._num_measuring = 0
        token_s = self._costs.prefill_token_time_s(num_context_tokens)
        if usual_s is None or token_s is None:
            return 1
        allowed_s = _PLANNED_SHARE * (self.itl_slo - 1.0) * usual_s
        self._remeasure_after = _REMEASURE_AFTER if token_s <= allowed_s else _REMEASURE_SOON_AFTER
        tokens = allowed_s / token_s
        if tokens < _STEP_GRAIN:
            # A step costs a little whatever its chunk, so a slightly larger one now and then shows that two tokens
            # cost less than twice one.
            most = int(tokens * _LARGEST_SHARE / _PLANNED_SHARE)
            limit = max(1, min(budget, most, int(tokens + self._owed_tokens)))
            self._owed_tokens = min(1.0, max(0.0, tokens + self._owed_tokens - limit))
            return limit
        limit = min(budget, int(tokens))
        return max(1, limit - (num_rows + limit) % _STEP_GRAIN)

    def count_tokens(self, request: Request, count: int) -> None:
        """Note that the step computes `count` more tokens of a request."""
        if request.num_tokens - request.num_computed_tokens == 1 and request.num_output_tokens:
            self._mix.num_rows += 1
            return
        if not self._mix.num_prefill_tokens:
            self._mix.num_context_tokens = request.num_computed_tokens
        self._mix.num_prefill_tokens += count

    def observe(self, step_id: int, step_time_s: float | None) -> None:
        """Learn from the execution of a step, which took `step_time_s` seconds if anybody knows."""
        mix = self._mixes.pop(step_id)
        if step_time_s is None:
            return
        self._has_observed = True
        if mix.num_rows and not mix.num_prefill_tokens:
            self._num_bounded = 0
        self._costs.observe(
            num_rows=mix.num_rows,
            num_prefill_tokens=mix.num_prefill_tokens,
            num_context_tokens=mix.num_context_tokens,
            step_time_s=step_time_s,
        )
