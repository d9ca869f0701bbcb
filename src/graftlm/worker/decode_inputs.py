"""Inputs of steps in which each request computes one token, in memory that is filled anew in each step.

It gives what `build_step_inputs` gives, with a third of its array operations: such a step is over so soon that they
would show.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from graftlm.contracts.attention import AttentionMetadata, ForwardContext
from graftlm.contracts.step import StepPlan
from graftlm.worker.input_batch import InputBatch
from graftlm.worker.step_inputs import StepInputs


@dataclasses.dataclass(slots=True)
class _Room:
    """The first places of the shared memory, for one number of requests; arrays and tensors are the same memory."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int32]
    block: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int64]
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    """ids, positions, slots, seq_lens"""
    query_start_tensor: torch.Tensor
    """[requests + 1] int32, on the device"""
    ones: list[int]


class DecodeInputs:
    """Builds them for one batch. What it returned before is overwritten."""

    def __init__(self, batch: InputBatch, device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self._longs = np.zeros((5, batch.max_num_seqs), np.int64)
        self._seq_lens = np.zeros(batch.max_num_seqs, np.int32)
        self._query_start = np.arange(batch.max_num_seqs + 1, dtype=np.int64)
        self._rooms: dict[int, _Room] = {}

    def build(self, plan: StepPlan) -> StepInputs:
        """Gather the tokens of a plan that the batch has applied, and that gives each request one token."""
        batch = self._batch
        request_ids = list(plan.num_scheduled_tokens)
        num_requests = len(request_ids)
        room = self._rooms.get(num_requests) or self._make_room(num_requests)
        rows = batch.rows_of(request_ids)
        starts = np.take(batch.num_computed_tokens, rows, out=room.positions)
        room.ids[:] = batch.token_ids[rows, starts]
        np.divmod(starts, batch.block_size, out=(room.block, room.offset))
        room.slots[:] = batch.block_table[rows, room.block]
        room.slots *= batch.block_size
        room.slots += room.offset
        np.add(starts, 1, out=room.seq_lens, casting="unsafe")
        seq_lens_list: list[int] = room.seq_lens.tolist()
        max_seq_len = max(seq_lens_list)
        num_blocks = -(-max_seq_len // batch.block_size)
        block_table = torch.from_numpy(batch.block_table[rows, :num_blocks])
        ids, positions, slots, seq_lens = room.tensors
        if self._device.type != "cpu":
            ids, positions, slots, seq_lens, block_table = (
                one.to(self._device) for one in (ids, positions, slots, seq_lens, block_table)
            )
        metadata = AttentionMetadata(
            num_requests=num_requests,
            num_tokens=num_requests,
            max_query_len=1,
            max_seq_len=max_seq_len,
            query_start=room.query_start_tensor,
            seq_lens=seq_lens,
            block_table=block_table,
            slot_mapping=slots,
            query_lens_list=room.ones.copy(),
            seq_lens_list=seq_lens_list,
        )
        return StepInputs(
            request_ids=request_ids,
            rows=rows,
            starts=starts,
            query_start=room.query_start,
            samples=batch.num_tokens[rows] == room.seq_lens,
            input_ids=ids,
            positions=positions,
            context=ForwardContext(attention=metadata),
        )

    def _make_room(self, num_requests: int) -> _Room:
        ids, positions, slots, block, offset = self._longs[:, :num_requests]
        seq_lens = self._seq_lens[:num_requests]
        query_start = self._query_start[: num_requests + 1]
        room = self._rooms[num_requests] = _Room(
            ids, positions, slots, seq_lens, block, offset, query_start,
            tensors=(
                torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(slots),
                torch.from_numpy(seq_lens),
            ),
            query_start_tensor=torch.from_numpy(query_start.astype(np.int32)).to(self._device),
            ones=[1] * num_requests,
        )  # fmt: skip
        return room
