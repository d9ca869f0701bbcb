"""Collectives over shared memory: torch.distributed's answers, or its own way where no memory is shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graftlm.testing.elsewhere import run_ranks


@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_calls_have_the_answers_of_torch(size):
    """Shapes of any size, number formats with a kernel and without, pieces of messages that fit no slot."""
    answers = run_ranks("rank_runs:compare", 7 + size, size=size)

    assert [answer["wrong"] for answer in answers] == [[]] * size
    assert {answer["remark"] for answer in answers} == {f"{size} ranks share memory"}
    assert len({answer["sums"] for answer in answers}) == 1, "every rank has the same bits"


@pytest.mark.parametrize(("problem", "reason"), [("no memory", "out of files"), ("other host", "not on one host")])
def test_without_common_memory_torch_carries_everything(problem, reason):
    """All ranks take the other way together, and at least one knows the reason."""
    try:
        answers = run_ranks("rank_runs:without_memory", problem, size=2)
    finally:
        from graftlm.testing import elsewhere

        for process in elsewhere._ranks.pop(2, []):  # they have been tampered with
            process.close()

    assert [numbers for _, numbers in answers] == [[3.0] * 3] * 2
    assert all(remark.startswith("torch.distributed over gloo, since ") for remark, _ in answers)
    assert any(reason in remark for remark, _ in answers)


def test_ranks_that_disagree_are_told():
    """A message of another size is no silent mixture of two calls."""
    said = run_ranks("rank_runs:disagree", size=2)

    assert "rank 1 sends 44 bytes where rank 0 expects 40" in said[0]
    assert "rank 0 sends 40 bytes where rank 1 expects 44" in said[1]


_RANK = """
import os, signal, sys
import torch
from rank_runs import communicator
rank, method = int(sys.argv[1]), sys.argv[2]
with communicator(rank, 3, method) as shared:
    shared.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        shared.all_reduce(torch.ones(4))
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
"""


def test_a_rank_that_is_killed_leaves_nobody_waiting(tmp_path: Path):
    """The others raise, and name it."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), f"file://{tmp_path}/store"],
            env={"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[0] for rank in ranks]

    assert ranks[1].returncode == -signal.SIGKILL
    assert said[0] == "rank 1 has ended; rank 0 waits for its part of a collective in vain\n"
    assert said[2].startswith(("rank 1 has ended; rank 2", "rank 0 has ended; rank 2"))


def test_best_finds_the_first_of_the_largest(path):
    """Each row's arg-max as torch has it, and whether the number means anything."""
    from graftlm_kernels import _native
    from graftlm_kernels.native import DTYPE_CODES

    for dtype in DTYPE_CODES:
        for rows, columns in ((1, 1), (3, 7), (2, 300), (5, 49152), (0, 8)):
            wide = torch.randn(rows, columns + 5).to(dtype)
            x = wide[:, :columns]  # rows that lie apart
            places, finite = torch.full((rows,), -1), torch.zeros(rows, dtype=torch.bool)
            _native.best(
                x.data_ptr(), x.stride(0), rows, columns, DTYPE_CODES[dtype], places.data_ptr(), finite.data_ptr()
            )
            assert torch.equal(places, x.float().argmax(-1)), (dtype, rows, columns, path)
            assert finite.all()
    odd = torch.zeros(4, 70)
    odd[0, 66], odd[1, 3], odd[2], odd[3, 69] = float("nan"), float("inf"), float("-inf"), 1.0
    places, finite = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool)
    _native.best(odd.data_ptr(), 70, 4, 70, 0, places.data_ptr(), finite.data_ptr())
    assert places.tolist() == [66, 3, 0, 69] and finite.tolist() == [False, False, False, True]
