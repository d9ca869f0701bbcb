"""What the offline `LLM` returns: one output for each prompt, one completion for each choice."""

from __future__ import annotations

import dataclasses

from graftlm.contracts.request import TokenLogprobs
from graftlm.frontend.choice_stream import TextUpdate


@dataclasses.dataclass
class CompletionOutput:
    """One choice; `logprobs` has an entry for each token where they were asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, update: TextUpdate) -> None:
        """Append what one step brought."""
        self.text += update.text
        self.token_ids += update.token_ids
        if update.logprobs:
            self.logprobs = [*(self.logprobs or ()), *update.logprobs]
        self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason


@dataclasses.dataclass
class RequestOutput:
    """One prompt with its choices; `prompt` is None where ids were given."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
