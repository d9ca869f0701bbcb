"""One step's tensors, built from the batch with a few array operations whatever the number of requests.

It does not know the model; the order of tokens is that of the plan's requests, one behind the other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from graftlm.contracts.attention import AttentionMetadata, ForwardContext
from graftlm.contracts.step import StepPlan
from graftlm.worker.input_batch import InputBatch


@dataclasses.dataclass(slots=True)
class StepInputs:
    """What the model is called with, and which request each row of its answer belongs to."""

    request_ids: list[str]
    rows: npt.NDArray[np.int64]
    """[requests]: rows of the batch"""
    starts: npt.NDArray[np.int64]
    """[requests]: place of each request's first token of this step"""
    query_start: npt.NDArray[np.int64]
    """[requests + 1]"""
    samples: npt.NDArray[np.bool_]
    """[requests]: whether the step reaches the request's last known token, so that a new one is sampled"""
    input_ids: torch.Tensor
    """[tokens] int64"""
    positions: torch.Tensor
    """[tokens] int64"""
    context: ForwardContext

    @property
    def num_tokens(self) -> int:
        return int(self.query_start[-1])


def build_step_inputs(batch: InputBatch, plan: StepPlan, device: torch.device) -> StepInputs:
    """Gather the tokens of a plan that `batch` has already applied."""
    request_ids = list(plan.num_scheduled_tokens)
    num_requests = len(request_ids)
    rows = batch.rows_of(request_ids)
    counts = np.fromiter(plan.num_scheduled_tokens.values(), np.int64, num_requests)
    starts = batch.num_computed_tokens[rows]
    ends = starts + counts
    query_start = np.zeros(num_requests + 1, np.int64)
    np.cumsum(counts, out=query_start[1:])
    num_tokens = int(query_start[-1])

    if num_tokens == num_requests:  # one token each
        row_of_token, positions = rows, starts
    else:
        row_of_token = np.repeat(rows, counts)  # [tokens]
        positions = np.arange(num_tokens) + np.repeat(starts - query_start[:-1], counts)  # [tokens]
    input_ids = batch.token_ids[row_of_token, positions].astype(np.int64)
    block, offset = np.divmod(positions, batch.block_size)
    slot_mapping = batch.block_table[row_of_token, block].astype(np.int64) * batch.block_size + offset

    max_seq_len = int(ends.max())
    num_blocks = -(-max_seq_len // batch.block_size)
    metadata = AttentionMetadata(
        num_requests=num_requests,
        num_tokens=num_tokens,
        max_query_len=int(counts.max()),
        max_seq_len=max_seq_len,
        query_start=_tensor(query_start.astype(np.int32), device),
        seq_lens=_tensor(ends.astype(np.int32), device),
        block_table=_tensor(batch.block_table[rows, :num_blocks], device),
        slot_mapping=_tensor(slot_mapping, device),
        query_lens_list=counts.tolist(),
        seq_lens_list=ends.tolist(),
    )
    return StepInputs(
        request_ids=request_ids,
        rows=rows,
        starts=starts,
        query_start=query_start,
        samples=ends == batch.num_tokens[rows],
        input_ids=_tensor(input_ids, device),
        positions=_tensor(positions, device),
        context=ForwardContext(attention=metadata),
    )


def _tensor(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
