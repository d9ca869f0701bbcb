"""What the scheduler hands out for one step, and what the workers bring back."""

from __future__ import annotations

import msgspec

from graftlm.contracts.request import TokenLogprobs
from graftlm.contracts.sampling import SamplingParams


class NewRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request the workers do not know (or have forgotten when it was preempted).

    `token_ids` are all known tokens: prompt, then outputs already made. The first `num_computed_tokens` of
    them have their keys and values in the blocks `block_ids` (a prefix-cache hit).
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int = 0
    eos_token_ids: list[int] = []


class ContinuedRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request the workers know: only what changed since they saw it last.

    `new_token_ids` are tokens known now that the workers were not told of yet (usually the one sampled in the
    step before); `new_block_ids` are appended to its block table.
    """

    request_id: str
    num_computed_tokens: int
    new_token_ids: list[int] = []
    new_block_ids: list[int] = []


class StepPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The work of one step.

    `num_scheduled_tokens[r]` tokens of request r are computed, starting at its `num_computed_tokens`. When
    that reaches its last known token, one token is sampled. `finished` and `preempted` requests are to be
    forgotten before anything else. The order of `num_scheduled_tokens` is the order of the batch.
    """

    step_id: int
    num_scheduled_tokens: dict[str, int] = {}
    new: list[NewRequest] = []
    continued: list[ContinuedRequest] = []
    finished: list[str] = []
    preempted: list[str] = []

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    def num_computed_tokens_of(self, request_id: str) -> int:
        """Return where this step's tokens of a request begin."""
        requests: list[NewRequest | ContinuedRequest] = [*self.new, *self.continued]
        for request in requests:
            if request.request_id == request_id:
                return request.num_computed_tokens
        raise KeyError(request_id)


class StepResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the workers computed: sampled ids by request (absent where the step stopped inside the known tokens).

    `prompt_logprobs[r]` holds the entries that this step's prompt tokens predict, in order: a chunk that starts
    at token i brings those of tokens i+1, i+2, …. `errors[r]` says why request r cannot go on (no token then).
    """

    step_id: int
    sampled_token_ids: dict[str, list[int]] = {}
    logprobs: dict[str, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    errors: dict[str, str] = {}
