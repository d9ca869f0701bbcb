"""One choice of a request, from the engine's token ids to text with its end decided.

It joins detokenizer and stop strings; it waits for nothing and aborts nothing, its owner does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate, TokenLogprobs
from graftlm.frontend.detokenizer import build_detokenizer
from graftlm.frontend.stop_strings import StopStrings
from graftlm.frontend.tokenizer import Tokenizer


class TextUpdate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one step brought to one choice.

    `text`, `token_ids` and the log-probabilities are what is new. Text may come later than its tokens: characters
    that are incomplete, or that may begin a stop string, are held back. `finish_reason` is set on the choice's
    last update; `stop_reason` is then the stop string or stop token id that ended it, None for the model's own
    end of sequence.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class ChoiceStream:
    """The state of one choice. Without a tokenizer there is no text, only ids."""

    def __init__(self, request: EngineRequest, *, tokenizer: Tokenizer | None, index: int = 0) -> None:
        params = request.params
        self.index = index
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: str | None = None
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._end_ids = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
        self._keep_end = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._detokenizer = None if tokenizer is None else build_detokenizer(tokenizer, request.prompt_token_ids)
        self._stop = StopStrings(params.stop, include_in_output=self._keep_end) if params.stop else None

    def feed(self, update: RequestUpdate) -> TextUpdate:
        """Take what one step brought; when the result has a `finish_reason`, nothing may follow.

        Raises GraftlmError when the engine could not serve the request.
        """
        if update.finish_reason == FinishReason.ERROR:
            raise GraftlmError(update.error or "the engine could not serve this request")
        token_ids = update.new_token_ids
        ended = update.finish_reason
        text = self._text(token_ids, ended) if self._detokenizer is not None else ""
        self.num_output_tokens += len(token_ids)
        self.num_cached_tokens = max(self.num_cached_tokens, update.num_cached_tokens)
        stop_reason: int | str | None = update.stop_reason
        self.finish_reason = None if ended is None else str(ended)
        if self._stop is not None and self._stop.matched is not None:
            self.finish_reason, stop_reason = str(FinishReason.STOP), self._stop.matched
        return TextUpdate(
            index=self.index,
            text=text,
            token_ids=token_ids,
            logprobs=update.logprobs,
            prompt_logprobs=update.prompt_logprobs,
            finish_reason=self.finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
        )

    def _text(self, token_ids: Sequence[int], ended: FinishReason | None) -> str:
        assert self._detokenizer is not None
        if ended == FinishReason.STOP and not self._keep_end and token_ids and token_ids[-1] in self._end_ids:
            token_ids = token_ids[:-1]
        if self._stop is None:
            text = self._detokenizer.feed(token_ids)
            return text + self._detokenizer.finish() if ended else text
        unsearched = max(0, self._min_tokens - self.num_output_tokens)
        text = self._detokenizer.feed(token_ids[:unsearched]) if unsearched else ""
        text += self._stop.feed(self._detokenizer.feed(token_ids[unsearched:]))
        if ended and self._stop.matched is None:
            text += self._stop.feed(self._detokenizer.finish())
        if ended and self._stop.matched is None:
            text += self._stop.finish()
        return text
