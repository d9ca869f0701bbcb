"""Writes log-probabilities in OpenAI's two shapes: parallel lists (completions) and entries (chat).

It does not know where they come from. Without a tokenizer a token's text is `token_id:ID`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graftlm.contracts.request import TokenLogprobs
from graftlm.frontend.http.schemas.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from graftlm.frontend.tokenizer import Tokenizer

#: JSON knows no -inf; OpenAI writes this for a token that could not be.
MIN_LOGPROB = -9999.0


def _token(tokenizer: Tokenizer | None, token_id: int) -> tuple[str, bytes]:
    if tokenizer is None:
        text = f"token_id:{token_id}"
        return text, text.encode()
    raw = tokenizer.token_bytes(token_id)
    return raw.decode("utf-8", "replace"), raw


def chat_logprobs(tokenizer: Tokenizer | None, places: Sequence[TokenLogprobs], *, num_top: int) -> ChatLogprobs:
    """Write one entry for each place, with its `num_top` best tokens."""
    return ChatLogprobs([_chat_entry(tokenizer, place, num_top) for place in places])


def _chat_entry(tokenizer: Tokenizer | None, place: TokenLogprobs, num_top: int) -> TokenLogprob:
    best = zip(place.top_ids[:num_top], place.top_logprobs[:num_top], strict=True)
    tops = [(*_token(tokenizer, token_id), _finite(logprob)) for token_id, logprob in best]
    text, raw = _token(tokenizer, place.token_id)
    return TokenLogprob(
        token=text,
        logprob=_finite(place.logprob),
        bytes=list(raw),
        top_logprobs=[TopLogprob(token=t, logprob=p, bytes=list(b)) for t, b, p in tops],
    )


class CompletionLogprobsWriter:
    """Writes the places of one choice, whose text offsets go on from call to call."""

    def __init__(self, tokenizer: Tokenizer | None, *, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write_prompt(self, token_ids: Sequence[int], places: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Write the prompt's tokens; the first has no log-probability, since nothing precedes it."""
        entry = CompletionLogprobs([], [], [], [])
        if token_ids:
            self._append(entry, token_ids[0], None)
        for place in places:
            self._append(entry, place.token_id, place)
        return entry

    def write(self, places: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        entry = CompletionLogprobs([], [], [], [])
        for place in places:
            self._append(entry, place.token_id, place)
        return entry

    def _append(self, entry: CompletionLogprobs, token_id: int, place: TokenLogprobs | None) -> None:
        entry.text_offset.append(self._offset)
        entry.tokens.append(_token(self._tokenizer, token_id)[0])
        entry.token_logprobs.append(None if place is None else _finite(place.logprob))
        entry.top_logprobs.append(None if place is None else self._tops(place))
        if self._tokenizer is not None:
            self._offset += len(self._decoder.decode(self._tokenizer.text_bytes(token_id)))

    def _tops(self, place: TokenLogprobs) -> dict[str, float]:
        """Map the best tokens' texts to their log-probabilities, the chosen token's among them."""
        tops: dict[str, float] = {}
        for token_id, logprob in zip(
            place.top_ids[: self._num_top], place.top_logprobs[: self._num_top], strict=True
        ):
            tops.setdefault(_token(self._tokenizer, token_id)[0], _finite(logprob))
        tops.setdefault(_token(self._tokenizer, place.token_id)[0], _finite(place.logprob))
        return tops


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Append the parts of one choice to each other."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        whole.text_offset += part.text_offset
        whole.token_logprobs += part.token_logprobs
        whole.tokens += part.tokens
        whole.top_logprobs += part.top_logprobs
    return whole


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
