"""Measures one request as its caller sees it: first token, gaps between tokens, whole time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from graftlm.contracts.request import FinishReason
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.stats import RequestStats
from graftlm.frontend.choice_stream import ChoiceStream, TextUpdate

_WORST_FIRST = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)


class RequestClock:
    """Starts when it is made; `failed` is set when the engine failed the request."""

    def __init__(self, request_id: str, params: SamplingParams) -> None:
        self._request_id = request_id
        self._params = params
        self.failed = False
        self._began = time.monotonic()
        self._first_token_s: float | None = None
        self._last_seen: dict[int, float] = {}
        self._gaps_s: list[float] = []

    def saw(self, update: TextUpdate) -> None:
        if not update.token_ids:
            return
        now = time.monotonic()
        last = self._last_seen.get(update.index)
        if last is not None:
            self._gaps_s.append(now - last)
        elif self._first_token_s is None:
            self._first_token_s = now - self._began
        self._last_seen[update.index] = now

    def stats(self, choices: Sequence[ChoiceStream], *, num_prompt_tokens: int) -> RequestStats:
        """Sum the choices up; a choice that was left before its end counts as aborted."""
        reasons = {choice.finish_reason or str(FinishReason.ABORT) for choice in choices}
        if self.failed:
            reasons.add(str(FinishReason.ERROR))
        return RequestStats(
            request_id=self._request_id,
            finish_reason=str(next(reason for reason in _WORST_FIRST if reason in reasons)),
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=max(choice.num_cached_tokens for choice in choices),
            num_output_tokens=sum(choice.num_output_tokens for choice in choices),
            e2e_latency_s=time.monotonic() - self._began,
            time_to_first_token_s=self._first_token_s,
            inter_token_latencies_s=self._gaps_s,
            max_tokens=self._params.max_tokens,
            n=len(choices),
        )
