"""What the scheduler knows of one request; it does not know who else competes for the memory."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from graftlm.contracts.request import EngineRequest, FinishReason, TokenLogprobs
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import ContinuedRequest, NewRequest


class RequestState(StrEnum):
    """Where a request stands; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One sequence being continued: its *known* tokens, and how many of them are *computed*.

    `num_computed_tokens` counts tokens that some plan already covers; plans run in order, so a later plan may
    rely on them before the result of the earlier one is back.
    """

    request_id: str
    params: SamplingParams
    token_ids: list[int]
    """prompt, then output"""
    num_prompt_tokens: int
    priority: int
    arrival_order: int
    end_token_ids: frozenset[int]
    """the model's own end-of-sequence ids; empty when the caller ignores them"""
    eos_token_ids: list[int]

    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    """prefix-cache hit at the first admission; None before it"""
    block_ids: list[int] = dataclasses.field(default_factory=list)
    block_hashes: list[bytes] = dataclasses.field(default_factory=list)
    num_registered_blocks: int = 0
    prompt_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    """those of prompt tokens 1, 2, … as far as they have come back"""
    num_prompt_tokens_counted: int = 0

    known_to_workers: bool = False
    num_told_tokens: int = 0
    num_told_blocks: int = 0
    first_step_id: int | None = None

    @classmethod
    def from_engine_request(cls, request: EngineRequest, *, arrival_order: int) -> Request:
        params = request.params
        return cls(
            request_id=request.request_id,
            params=params,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            priority=request.priority,
            arrival_order=arrival_order,
            end_token_ids=frozenset() if params.ignore_eos else frozenset(request.eos_token_ids),
            eos_token_ids=list(request.eos_token_ids),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True until the first output token, with which they are delivered."""
        return self.params.prompt_logprobs is not None and len(self.token_ids) == self.num_prompt_tokens

    def describe_all(self) -> NewRequest:
        """Describe the request to workers that do not know it; counts everything as told."""
        self.known_to_workers = True
        token_ids, block_ids = self._take_untold()
        return NewRequest(
            request_id=self.request_id,
            token_ids=token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
            block_ids=block_ids,
            num_computed_tokens=self.num_computed_tokens,
            eos_token_ids=self.eos_token_ids,
        )

    def describe_change(self) -> ContinuedRequest:
        """Describe to workers what changed since they were told last; counts it as told."""
        token_ids, block_ids = self._take_untold()
        return ContinuedRequest(
            request_id=self.request_id,
            num_computed_tokens=self.num_computed_tokens,
            new_token_ids=token_ids,
            new_block_ids=block_ids,
        )

    def _take_untold(self) -> tuple[list[int], list[int]]:
        tokens = self.token_ids[self.num_told_tokens :]
        blocks = self.block_ids[self.num_told_blocks :]
        self.num_told_tokens = len(self.token_ids)
        self.num_told_blocks = len(self.block_ids)
        return tokens, blocks

    def forget_computed(self) -> None:
        """Go back to nothing computed, as after the loss of all blocks; known tokens stay."""
        self.num_computed_tokens = 0
        self.num_registered_blocks = 0
        self.known_to_workers = False
        self.num_told_tokens = 0
        self.num_told_blocks = 0

    def ending(self, max_model_len: int) -> tuple[FinishReason, int | None] | None:
        """Tell whether the last token ends the request: the reason, and the stop token id if one did."""
        token_id = self.token_ids[-1]
        if self.num_output_tokens >= self.params.min_tokens:
            if token_id in self.end_token_ids:
                return FinishReason.STOP, None
            if token_id in self.params.stop_token_ids:
                return FinishReason.STOP, token_id
        max_tokens = self.params.max_tokens
        if max_tokens is not None and self.num_output_tokens >= max_tokens:
            return FinishReason.LENGTH, None
        if self.num_tokens >= max_model_len:
            return FinishReason.LENGTH, None
        return None
