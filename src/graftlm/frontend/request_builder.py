"""Turns a validated wish into requests for the engine core: ids, limits, seeds, one request for each choice.

It refuses what the engine cannot serve, naming the parameter; it tokenizes nothing and sends nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import msgspec

from graftlm.contracts.errors import InvalidParameter, RequestTooLong
from graftlm.contracts.request import EngineRequest
from graftlm.contracts.sampling import SamplingParams
from graftlm.plugins.spelling import counted

_MASK = 2**64 - 1


class RequestBuilder:
    """Builds the requests of one engine.

    A request without a seed gets one made from the engine's seed and the request's number: asking twice gives two
    answers, and the same calls in the same order after a restart give the same answers again. Choice i of a
    request samples with the request's seed + i.
    """

    def __init__(
        self,
        *,
        max_model_len: int,
        vocab_size: int,
        seed: int,
        eos_token_ids: Sequence[int] = (),
        has_tokenizer: bool = True,
    ) -> None:
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._seed = seed
        self._eos_token_ids = list(eos_token_ids)
        self._has_tokenizer = has_tokenizer
        self._numbers = itertools.count()

    def build(
        self, prompt_token_ids: list[int], params: SamplingParams, *, request_id: str, priority: int = 0
    ) -> list[EngineRequest]:
        """Return one request for each of `params.n` choices; raises RequestError."""
        self._check_prompt(prompt_token_ids)
        self._check_params(params)
        max_tokens = self._max_tokens(len(prompt_token_ids), params)
        seed = params.seed if params.seed is not None else _mix(self._seed, next(self._numbers))
        now = time.time()
        return [
            EngineRequest(
                request_id=request_id if params.n == 1 else f"{request_id}#{index}",
                prompt_token_ids=prompt_token_ids,
                params=msgspec.structs.replace(
                    params,
                    n=1,
                    seed=(seed + index) & _MASK,
                    max_tokens=max_tokens,
                    prompt_logprobs=params.prompt_logprobs if index == 0 else None,
                ),
                eos_token_ids=self._eos_token_ids,
                arrival_time=now,
                priority=priority,
            )
            for index in range(params.n)
        ]

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not isinstance(token_ids, list | tuple):
            raise InvalidParameter("prompt", token_ids, cure="give a text or a list of token ids")
        if not token_ids:
            raise InvalidParameter("prompt", "", cure="give at least one token")
        if set(map(type, token_ids)) != {int}:
            wrong = next(i for i in token_ids if type(i) is not int)
            raise InvalidParameter(
                "prompt", wrong, cure="give a text or a list of token ids, which are whole numbers"
            )
        if len(token_ids) >= self.max_model_len:
            raise RequestTooLong(prompt_tokens=len(token_ids), limit=self.max_model_len)
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            wrong = next(i for i in token_ids if not 0 <= i < self._vocab_size)
            raise InvalidParameter("prompt", wrong, cure=f"token ids of this model are 0 to {self._vocab_size - 1}")

    def _check_params(self, params: SamplingParams) -> None:
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            for token_id in ids:
                if not 0 <= token_id < self._vocab_size:
                    cure = f"token ids of this model are 0 to {self._vocab_size - 1}"
                    raise InvalidParameter(name, token_id, cure=cure)
        if params.stop and not self._has_tokenizer:
            raise InvalidParameter("stop", params.stop, cure="this model carries no tokenizer; use stop_token_ids")

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        room = self.max_model_len - num_prompt_tokens
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestTooLong(
                prompt_tokens=num_prompt_tokens, limit=self.max_model_len, max_tokens=params.max_tokens
            )
        if params.min_tokens > room:
            raise InvalidParameter(
                "min_tokens",
                params.min_tokens,
                cure=f"after this prompt the context has room for {counted(room, 'token')}",
            )
        return room if params.max_tokens is None else params.max_tokens


def _mix(seed: int, number: int) -> int:
    """Spread two numbers over 64 bits (the finisher of splitmix64), so that neighbours share nothing."""
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
