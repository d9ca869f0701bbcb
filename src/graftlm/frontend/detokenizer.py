"""Turns token ids into text while they arrive, holding back characters that are not complete yet.

Special tokens give no text. It knows nothing of stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from graftlm.frontend.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 8
_CONTEXT_TOKENS = 6


class Detokenizer(Protocol):
    """The text of one output; what all calls return, joined, is the text of all its ids."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take more ids and return the text that is complete now."""

    def finish(self) -> str:
        """Return what was held back; an incomplete character becomes U+FFFD."""


def build_detokenizer(tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
    """Choose the detokenizer that suits the tokenizer's decoder.

    `prompt_token_ids` tells what stands before the output: some decoders drop the space in front of a text.
    """
    if tokenizer.is_byte_level:
        return ByteLevelDetokenizer(tokenizer)
    return WindowDetokenizer(tokenizer, prompt_token_ids)


class ByteLevelDetokenizer:
    """For vocabularies whose tokens are bytes: exact, and one table look-up a token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.text_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        token_bytes = self._token_bytes
        if len(token_ids) == 1:
            return self._utf8.decode(token_bytes(token_ids[0]))
        return self._utf8.decode(b"".join([token_bytes(token_id) for token_id in token_ids]))

    def finish(self) -> str:
        return self._utf8.decode(b"", True)


class WindowDetokenizer:
    """For every other decoder: decode a short window twice, without and with the new token.

    Well-formed text equals decoding the whole. Where a model makes malformed bytes, the number of U+FFFD may
    differ, since a byte-fallback decoder judges a run of bytes only at its end.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = [i for i in prompt_token_ids[-_CONTEXT_TOKENS:] if not tokenizer.is_special(i)]
        self._num_shown = len(self._window)
        self._shown = tokenizer.decode(self._window) if self._window else ""

    def feed(self, token_ids: Sequence[int]) -> str:
        pieces = []
        for token_id in token_ids:
            if self._tokenizer.is_special(token_id):
                continue
            self._window.append(token_id)
            text = self._tokenizer.decode(self._window)
            held = len(self._window) - self._num_shown
            if len(text) <= len(self._shown) or (text.endswith(_REPLACEMENT) and held < _MAX_HELD_TOKENS):
                if held >= _MAX_HELD_TOKENS:
                    self._advance()
                continue
            pieces.append(text[len(self._shown) :])
            self._advance()
        return "".join(pieces)

    def finish(self) -> str:
        if len(self._window) == self._num_shown:
            return ""
        rest = self._tokenizer.decode(self._window)[len(self._shown) :]
        self._advance()
        return rest

    def _advance(self) -> None:
        """Keep as context only the tokens that were new, unless they gave no text."""
        context = self._window[self._num_shown :]
        shown = self._tokenizer.decode(context)
        if not shown.strip():
            context = self._window[-2 * _MAX_HELD_TOKENS :]
            shown = self._tokenizer.decode(context)
        self._window, self._num_shown, self._shown = context, len(context), shown
