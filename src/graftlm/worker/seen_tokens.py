"""The distinct tokens of one request and how often its output has each, kept up token by token.

It does not know penalties; only requests that have one own such a table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class SeenTokens:
    """A sparse count: `ids` and `counts` are views that hold until the next `append`."""

    __slots__ = ("_counts", "_ids", "_place", "_size")

    def __init__(self, prompt_token_ids: list[int], output_token_ids: list[int]) -> None:
        """Start with the prompt's tokens, whose output count is 0; pass an empty prompt if it does not matter."""
        distinct = np.unique(np.asarray(prompt_token_ids, np.int64))
        self._size = len(distinct)
        capacity = self._size + 256
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = distinct
        self._counts = np.zeros(capacity, np.float32)
        self._place = {token_id: place for place, token_id in enumerate(distinct.tolist())}
        self.append(output_token_ids)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: self._size]

    def append(self, output_token_ids: list[int]) -> None:
        """Count tokens of the output."""
        for token_id in output_token_ids:
            place = self._place.get(token_id)
            if place is None:
                place = self._place[token_id] = self._size
                if place == len(self._ids):
                    self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                    self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._ids[place] = token_id
                self._size += 1
            self._counts[place] += 1
