"""Ends an output at the first stop string, and holds back text that may be the beginning of one.

It sees text only, in pieces of any size, and gives the same answer however the text was cut; it knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one output.

    The stop string that is complete first ends the output; of those complete at the same character, the one
    that begins first. Cost is linear in the text, whatever the stop strings look like.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        self._patterns = [(text, _borders(text)) for text in stop]
        self._states = [0] * len(self._patterns)
        self._include_in_output = include_in_output
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take more text and return what is safe to show now; nothing may be fed after `matched` is set."""
        states = self._states
        for position, char in enumerate(text):
            longest = 0
            for i, (pattern, borders) in enumerate(self._patterns):
                state = states[i]
                while state and pattern[state] != char:
                    state = borders[state - 1]
                if pattern[state] == char:
                    state += 1
                if state == len(pattern):
                    longest = max(longest, state)
                    state = borders[state - 1]
                states[i] = state
            if longest:
                return self._end(text[: position + 1], longest)
        return self._release(text)

    def finish(self) -> str:
        """Return the text still held back: the output ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _end(self, text: str, length: int) -> str:
        shown = self._held + text
        self._held = ""
        self.matched = shown[-length:]
        return shown if self._include_in_output else shown[:-length]

    def _release(self, text: str) -> str:
        shown = self._held + text
        keep = max(self._states, default=0)
        self._held = shown[len(shown) - keep :]
        return shown[: len(shown) - keep]


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its end (Knuth, Morris, Pratt)."""
    borders = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = borders[length - 1]
        if text[i] == text[length]:
            length += 1
        borders[i] = length
    return borders
