"""What a worker remembers of each request from step to step, as rows of preallocated arrays.

It does not know the model or the device; it does what the scheduler's plans say.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from graftlm.contracts.errors import StartupError
from graftlm.contracts.step import ContinuedRequest, NewRequest, StepPlan
from graftlm.worker.sampling_state import SamplingState


class InputBatch:
    """Requests in rows. A row keeps its place as long as its request lives; steps gather the rows they need.

    The arrays are only touched where they are used, so that a long `max_model_len` costs no memory by itself.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int, default_seed: int
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        try:
            self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
            self.block_table = np.zeros((max_num_seqs, max_blocks), np.int32)  # unused places hold 0
        except MemoryError as error:
            raise StartupError(
                f"--max-num-seqs={max_num_seqs} sequences of --max-model-len={max_model_len} tokens do not fit "
                f"into this machine's memory, even without their keys and values ({error}); lower one of them"
            ) from error
        self.num_blocks = np.zeros(max_num_seqs, np.int64)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_logprobs: dict[int, int] = {}  # by row; only of requests that still want them
        self.sampling = SamplingState(max_num_seqs=max_num_seqs, vocab_size=vocab_size, default_seed=default_seed)
        self._row_by_id: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs))  # a heap: low rows first

    def __len__(self) -> int:
        return len(self._row_by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row_by_id

    def rows_of(self, request_ids: list[str]) -> npt.NDArray[np.int64]:
        return np.fromiter((self._row_by_id[r] for r in request_ids), np.int64, len(request_ids))

    def apply(self, plan: StepPlan) -> None:
        """Forget, learn and continue requests as the plan says."""
        for request_id in plan.finished:
            self._remove(request_id)
        for request_id in plan.preempted:
            self._remove(request_id)
        for new in plan.new:
            self._add(new)
        for continued in plan.continued:
            self._continue(continued)

    def _add(self, request: NewRequest) -> None:
        if not self._free_rows or request.request_id in self._row_by_id:
            raise RuntimeError(
                f"request {request.request_id!r} cannot join the batch: {len(self)} of {self.max_num_seqs} rows "
                "are taken; the plan and this worker disagree about which requests are running"
            )
        row = heapq.heappop(self._free_rows)
        self._row_by_id[request.request_id] = row
        num_tokens = len(request.token_ids)
        self.num_tokens[row] = 0
        self.num_blocks[row] = 0
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        self._append_tokens(row, request.token_ids)
        self._append_blocks(row, request.block_ids)
        self.sampling.add(row, request)
        if request.params.prompt_logprobs is not None and num_tokens == request.num_prompt_tokens:
            self.num_prompt_logprobs[row] = request.params.prompt_logprobs

    def _continue(self, request: ContinuedRequest) -> None:
        row = self._row_by_id[request.request_id]
        self.num_computed_tokens[row] = request.num_computed_tokens
        if request.new_token_ids:
            self._append_tokens(row, request.new_token_ids)
            self.sampling.append(row, request.new_token_ids)
        if request.new_block_ids:
            self._append_blocks(row, request.new_block_ids)

    def _remove(self, request_id: str) -> None:
        row = self._row_by_id.pop(request_id)
        self.block_table[row, : self.num_blocks[row]] = 0
        self.num_prompt_logprobs.pop(row, None)
        self.sampling.remove(row)
        heapq.heappush(self._free_rows, row)

    def _append_tokens(self, row: int, token_ids: list[int]) -> None:
        start = int(self.num_tokens[row])
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.num_tokens[row] = start + len(token_ids)

    def _append_blocks(self, row: int, block_ids: list[int]) -> None:
        start = int(self.num_blocks[row])
        self.block_table[row, start : start + len(block_ids)] = block_ids
        self.num_blocks[row] = start + len(block_ids)
