"""What steps cost, learned from those that were executed; it plans nothing and reads no clock."""

from __future__ import annotations

from collections import deque

#: Decode steps that are remembered, of any number of rows.
_REMEMBERED = 64
#: A decode step's usual time is told from this many of its like, and from no more than that many, the latest.
_FEWEST_LIKE, _MOST_LIKE = 3, 5
#: Attention makes later tokens of a prompt dearer: their cost is learned by this many tokens of context.
_CONTEXT_BUCKET = 512
#: A prefill token beside others costs at least this share of what it was thought to, and at most its inverse.
_LEAST_SHARE = 0.5
_LEARNING_RATE = 1 / 6
#: What a token of a small chunk costs beside one of a large chunk, until a small chunk has been seen.
_SMALL_CHUNK_FACTOR = 1.5


class StepCosts:
    """Two costs: the time of a step that only decodes, by rows, and what a prefill token adds, by context.

    The second includes what a step with a prefill costs more as such (a worker may keep decode steps ready), spread
    over its tokens; so it is learned apart for chunks beside decodes and for chunks alone, which are larger.
    """

    def __init__(self) -> None:
        self._decodes: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)  # rows, seconds; the latest first
        self._beside: dict[int, float] = {}  # context bucket → seconds a token, in steps that decode as well
        self._alone: dict[int, float] = {}

    def observe(
        self, *, num_rows: int, num_prefill_tokens: int, num_context_tokens: int, step_time_s: float
    ) -> None:
        """Learn from a step of `num_rows` decodes and a prefill that began at `num_context_tokens`."""
        if num_prefill_tokens == 0:
            if num_rows:
                self._decodes.appendleft((num_rows, step_time_s))
            return
        decode_time_s = (self.decode_time_s(num_rows) or 0.0) if num_rows else 0.0
        bucket = num_context_tokens // _CONTEXT_BUCKET
        added_s = (step_time_s - decode_time_s) / num_prefill_tokens
        costs = self._beside if num_rows else self._alone
        known = costs.get(bucket)
        if known is None:
            # Some cost there must be, whatever the noise of this one step, or the grain of the clock.
            costs[bucket] = max(added_s, step_time_s / num_prefill_tokens / 100, 1e-9)
        else:
            within = min(max(added_s, known * _LEAST_SHARE), known / _LEAST_SHARE)
            costs[bucket] = known + _LEARNING_RATE * (within - known)

    def decode_time_s(self, num_rows: int) -> float | None:
        """Return what a step of about `num_rows` decodes usually takes; None while too few were seen.

        The lower quartile of the latest: a step in which the machine did something else is not usual.
        """
        near = max(1, num_rows // 4)
        like: list[float] = []
        for rows, step_time_s in self._decodes:
            if abs(rows - num_rows) <= near:
                like.append(step_time_s)
                if len(like) == _MOST_LIKE:
                    break
        if len(like) < _FEWEST_LIKE:
            return None
        return sorted(like)[(len(like) - 1) // 4]

    def prefill_token_time_s(self, num_context_tokens: int) -> float | None:
        """Return what one more prompt token behind that much context adds to a step of decodes; None if unknown."""
        bucket = num_context_tokens // _CONTEXT_BUCKET
        if self._beside:
            return self._beside[_nearest(bucket, self._beside)]
        if self._alone:
            return _SMALL_CHUNK_FACTOR * self._alone[_nearest(bucket, self._alone)]
        return None


def _nearest(bucket: int, costs: dict[int, float]) -> int:
    return min(costs, key=lambda known: abs(known - bucket))
