"""The sampling parameters of the requests in a batch, as arrays by row, and one step's share of them as tensors.

It does not know logits. What only some requests use (penalties, bias, min_tokens) costs only these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import NewRequest
from graftlm.ops.sampling import LogitEntries, PenaltyEntries, SamplingInputs, uniform
from graftlm.worker.seen_tokens import SeenTokens

Rows = npt.NDArray[np.int64]
_GREEDY_BELOW = 1e-5  # a temperature so low always gives the best token; dividing by it would overflow
_NO_LOGPROBS = -1


class SamplingState:
    """One row for each row of the input batch."""

    def __init__(self, *, max_num_seqs: int, vocab_size: int, default_seed: int) -> None:
        self._vocab_size = vocab_size
        self._default_seed = default_seed
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_logprobs = np.full(max_num_seqs, _NO_LOGPROBS, np.int64)
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._seen: dict[int, SeenTokens] = {}
        self._bias: dict[int, tuple[Rows, npt.NDArray[np.float32]]] = {}
        self._min_tokens: dict[int, tuple[int, Rows]] = {}  # until that length of output, and what it forbids
        self._not_greedy: set[int] = set()  # rows that want more than their best token

    def add(self, row: int, request: NewRequest) -> None:
        """Take in a request's parameters and the tokens it has already."""
        params = request.params
        random = params.temperature >= _GREEDY_BELOW
        self._temperature[row] = params.temperature if random else 0.0
        self._top_k[row] = max(params.top_k, 0) if random else 0
        self._top_p[row] = params.top_p if random else 1.0
        self._min_p[row] = params.min_p if random else 0.0
        seed = params.seed if params.seed is not None else self._default_seed
        self._seed[row] = seed & (2**64 - 1)
        self._num_logprobs[row] = _NO_LOGPROBS if params.logprobs is None else params.logprobs
        self._add_penalties(row, request)
        if params.logit_bias:
            in_vocabulary = {t: b for t, b in params.logit_bias.items() if 0 <= t < self._vocab_size}
            self._bias[row] = (
                np.fromiter(in_vocabulary, np.int64, len(in_vocabulary)),
                np.fromiter(in_vocabulary.values(), np.float32, len(in_vocabulary)),
            )
        if params.min_tokens > 0:
            self._min_tokens[row] = params.min_tokens, self._end_tokens(params, request.eos_token_ids)
        adjusts = row in self._seen or row in self._bias or row in self._min_tokens
        if random or adjusts or params.logprobs is not None:
            self._not_greedy.add(row)

    def append(self, row: int, output_token_ids: list[int]) -> None:
        """A request has more output."""
        seen = self._seen.get(row)
        if seen is not None:
            seen.append(output_token_ids)

    def remove(self, row: int) -> None:
        self._seen.pop(row, None)
        self._bias.pop(row, None)
        self._min_tokens.pop(row, None)
        self._not_greedy.discard(row)

    def num_logprobs(self, rows: Rows) -> list[int]:
        """Return how many alternatives each row wants; -1 where it wants no log-probabilities at all."""
        return [int(number) for number in self._num_logprobs[rows]]

    def is_greedy(self, rows: Rows) -> bool:
        """Tell whether all rows want their best token and nothing else: `inputs` would be all None."""
        return not self._not_greedy or self._not_greedy.isdisjoint(rows.tolist())

    def inputs(
        self, rows: Rows, *, num_tokens: Rows, num_output_tokens: Rows, device: torch.device
    ) -> SamplingInputs:
        """Build what sampling the rows needs. A row's next token stands at position `num_tokens` of its request."""
        inputs = SamplingInputs()
        temperature = self._temperature[rows]
        if temperature.any():
            inputs.temperature = _tensor(temperature, device)
            inputs.uniforms = _tensor(uniform(self._seed[rows], num_tokens), device)
            if (top_k := self._top_k[rows]).any():
                inputs.top_k = _tensor(top_k, device)
            if ((top_p := self._top_p[rows]) < 1).any():
                inputs.top_p = _tensor(top_p, device)
            if (min_p := self._min_p[rows]).any():
                inputs.min_p = _tensor(min_p, device)
        wanted = self._num_logprobs[rows]
        if (wanted != _NO_LOGPROBS).any():
            inputs.logprob_rows = _tensor((wanted != _NO_LOGPROBS).nonzero()[0], device)
            inputs.num_top_logprobs = int(wanted.max())
        if self._seen:
            inputs.penalties = self._penalties(rows, device)
        if self._bias:
            inputs.bias = self._bias_entries(rows, device)
        if self._min_tokens:
            inputs.forbidden = self._forbidden(rows, num_output_tokens, device)
        return inputs

    def _add_penalties(self, row: int, request: NewRequest) -> None:
        params = request.params
        self._repetition[row] = params.repetition_penalty
        self._frequency[row] = params.frequency_penalty
        self._presence[row] = params.presence_penalty
        if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
            # Only the repetition penalty looks at the prompt.
            prompt = request.token_ids[: request.num_prompt_tokens] if params.repetition_penalty != 1 else []
            self._seen[row] = SeenTokens(prompt, request.token_ids[request.num_prompt_tokens :])

    def _end_tokens(self, params: SamplingParams, eos_token_ids: list[int]) -> Rows:
        ends = {*params.stop_token_ids, *([] if params.ignore_eos else eos_token_ids)}
        return np.array(sorted(t for t in ends if 0 <= t < self._vocab_size), np.int64)

    def _penalties(self, rows: Rows, device: torch.device) -> PenaltyEntries | None:
        penalized = [(place, row) for place, row in enumerate(rows.tolist()) if row in self._seen]
        if not penalized:
            return None
        tables = [self._seen[row] for _, row in penalized]
        sizes = [len(table.ids) for table in tables]
        of_row = np.repeat([row for _, row in penalized], sizes)
        return PenaltyEntries(
            rows=_tensor(np.repeat([place for place, _ in penalized], sizes), device),
            token_ids=_tensor(np.concatenate([table.ids for table in tables]), device),
            output_counts=_tensor(np.concatenate([table.counts for table in tables]), device),
            repetition=_tensor(self._repetition[of_row], device),
            frequency=_tensor(self._frequency[of_row], device),
            presence=_tensor(self._presence[of_row], device),
        )

    def _bias_entries(self, rows: Rows, device: torch.device) -> LogitEntries | None:
        biased = [(place, *self._bias[row]) for place, row in enumerate(rows.tolist()) if row in self._bias]
        if not biased:
            return None
        return LogitEntries(
            rows=_tensor(np.repeat([place for place, _, _ in biased], [len(ids) for _, ids, _ in biased]), device),
            token_ids=_tensor(np.concatenate([ids for _, ids, _ in biased]), device),
            values=_tensor(np.concatenate([values for _, _, values in biased]), device),
        )

    def _forbidden(self, rows: Rows, num_output_tokens: Rows, device: torch.device) -> LogitEntries | None:
        forbidding = []
        for place, (row, num_output) in enumerate(zip(rows.tolist(), num_output_tokens.tolist(), strict=True)):
            min_tokens, ids = self._min_tokens.get(row, (0, None))
            if ids is not None and num_output < min_tokens:
                forbidding.append((place, ids))
        if not forbidding:
            return None
        return LogitEntries(
            rows=_tensor(
                np.repeat([place for place, _ in forbidding], [len(ids) for _, ids in forbidding]), device
            ),
            token_ids=_tensor(np.concatenate([ids for _, ids in forbidding]), device),
        )


def _tensor(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
