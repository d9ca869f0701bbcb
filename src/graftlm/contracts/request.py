"""What the front end sends to the engine core, and what it gets back: plain msgspec data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.stats import StepStats


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words where they have one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class EngineRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One sequence to continue; a call with n > 1 becomes n of these.

    `params.stop` (strings) is the front end's business; the engine core ends at `eos_token_ids` (unless
    `ignore_eos`), at `params.stop_token_ids` and at `max_tokens`, which the front end has resolved to a number.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int] = []
    arrival_time: float = 0.0
    priority: int = 0


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one place: of the chosen token, and of the best ones, best first."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class RequestUpdate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one step brought to one request.

    `finish_reason` is set on the last update. `stop_reason` is the stop token id when one ended it (None for
    the model's own end of sequence). `prompt_logprobs` comes once, with the first token: one entry for each
    prompt token but the first.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None


class StepOutputs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything one engine step tells the front end, in one message."""

    updates: list[RequestUpdate] = []
    stats: StepStats | None = None
