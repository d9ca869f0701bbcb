"""Two real ranks over gloo, and one rank that touches nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graftlm.distributed import groups

RANK = """
import json, os, sys
import torch
from graftlm.distributed.groups import *
from graftlm.distributed.groups import _keep_gloo_on_loopback
rank, method = int(sys.argv[1]), sys.argv[2]
asked = []
def ask():
    asked.append(rank)
    return "graftlm.distributed.communicator:TorchCommunicator"
init_distributed(2, rank, method, communicator_cls=ask)
x = torch.arange(6.0).reshape(2, 3) + 10 * rank
strided = torch.arange(12.0).reshape(3, 4)[:, ::2].T + 10 * rank
gathered = tp_gather(x, 0)
print(json.dumps({
    "rank": tp_rank(), "size": tp_size(), "asked": asked, "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
    "sum": tp_all_reduce(strided).tolist(), "all": tp_all_gather(x).tolist(),
    "gathered": None if gathered is None else gathered.tolist(),
    "from_1": tp_broadcast(x.clone(), 1).tolist(),
}))
destroy_distributed()
destroy_distributed()
assert (tp_rank(), tp_size()) == (0, 1)
"""


def test_two_ranks_share_tensors(tmp_path: Path) -> None:
    """Each collective over a file rendezvous on the loopback interface; the communicator is asked once a rank."""
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), f"file://{tmp_path}/store"], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    answers = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]

    x = torch.arange(6.0).reshape(2, 3)
    strided = torch.arange(12.0).reshape(3, 4)[:, ::2].T
    for rank, answer in enumerate(answers):
        assert (answer["rank"], answer["size"], answer["asked"]) == (rank, 2, [rank])
        assert answer["interface"] in ("lo", "lo0")
        assert answer["sum"] == (2 * strided + 10).tolist()
        assert answer["all"] == torch.cat((x, x + 10), dim=-1).tolist()
        assert answer["from_1"] == (x + 10).tolist()
    assert answers[0]["gathered"] == torch.cat((x, x + 10)).tolist()
    assert answers[1]["gathered"] is None


def test_one_rank_asks_nobody_and_changes_nothing() -> None:
    """Every collective is the identity, and the communicator is never asked for."""
    groups.init_distributed(1, 0, "", communicator_cls=lambda: pytest.fail("asked"))
    x = torch.ones(2)

    assert groups.tp_all_reduce(x) is x and groups.tp_all_gather(x) is x
    assert groups.tp_gather(x) is x and groups.tp_broadcast(x) is x
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("path", "error", "problem"),
    [
        ("", ValueError, "must name a class as module:Class"),
        ("graftlm.layers.norm:RMSNorm", TypeError, "must subclass DeviceCommunicator"),
    ],
)
def test_a_wrong_communicator_is_refused(path: str, error: type[Exception], problem: str) -> None:
    """The error says what the platform answered."""
    with pytest.raises(error, match=problem):
        groups._resolve_communicator(path)


def test_wrong_ranks_are_refused() -> None:
    """Before anything is opened."""
    with pytest.raises(ValueError, match="rank=2 does not fit world_size=2"):
        groups.init_distributed(2, 2, "file:///x")
    with pytest.raises(ValueError, match="2 ranks need a rendezvous"):
        groups.init_distributed(2, 0, "")
