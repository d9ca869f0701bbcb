"""What the ranks of test_kernels_communicator do, each in a process of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)


@contextmanager
def communicator(rank: int, size: int, init_method: str) -> Any:
    """Join a group of gloo's and build the communicator over it."""
    from graftlm_kernels.communicator import SharedMemoryCommunicator

    from graftlm.distributed.groups import _keep_gloo_on_loopback

    _keep_gloo_on_loopback(init_method)
    dist.init_process_group("gloo", init_method=init_method, world_size=size, rank=rank)
    try:
        yield SharedMemoryCommunicator(group=dist.group.WORLD, device=torch.device("cpu"), name="tp")
    finally:
        dist.destroy_process_group()


def random_tensor(seed: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 10
    return x > 0 if dtype == torch.bool else x.to(dtype)


def compare(rank: int, size: int, init_method: str, seed: int) -> dict[str, Any]:
    """Make random calls; return what differs from torch.distributed, and one number that stands for all sums."""
    from graftlm.distributed.communicator import TorchCommunicator

    chance, wrong, sums = random.Random(seed), [], 0
    with communicator(rank, size, init_method) as shared:
        reference = TorchCommunicator(group=shared.group, device=shared.device, name="tp")
        for call in range(60):
            shape = [chance.choice((0, 1, 2, 5, 33)) for _ in range(chance.randint(0, 2))]
            shape.append(chance.choice((0, 1, 7, 576, 577, 300_000 if call % 10 == 0 else 64)))
            dtype, source, dim = chance.choice(DTYPES), chance.randrange(size), chance.randrange(len(shape))
            everybody = [random_tensor(1000 * call + r, shape, dtype) for r in range(size)]
            own = everybody[rank]
            if chance.random() < 0.3:  # columns that lie apart
                own = torch.stack((own, own), -1)[..., 0]
            kind = chance.choice(("all_reduce", "all_reduce", "all_gather", "gather", "broadcast"))
            if kind == "all_reduce" and dtype != torch.bool:
                found, expected = shared.all_reduce(own.clone()), added(everybody)
                sums = hash((sums, found.double().sum().item()))
            elif kind == "gather":
                found, expected = shared.gather(own, source, dim), reference.gather(own, source, dim)
            elif kind == "broadcast":
                found, expected = shared.broadcast(own.clone(), source), everybody[source]
            else:
                found, expected = shared.all_gather(own, dim), torch.cat(everybody, dim)
            same = (found is None and expected is None) or (
                found is not None and expected is not None and found.dtype == dtype and torch.equal(found, expected)
            )
            if not same:
                wrong.append(f"{kind} of {shape} {dtype} to {source} along {dim}")
        remark = shared.remark
    return {"wrong": wrong, "sums": sums, "remark": remark}


def added(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Add as the communicator promises: floats in float32, in the order of ranks, rounded once."""
    if not tensors[0].is_floating_point():
        return torch.stack(tensors).sum(0)
    total = tensors[0].float()
    for tensor in tensors[1:]:
        total = total + tensor.float()
    return total.to(tensors[0].dtype)


def without_memory(rank: int, size: int, init_method: str, problem: str) -> tuple[str, list[float]]:
    """Build it where ranks cannot share memory; return its remark and a sum."""
    from graftlm_kernels import communicator as module

    real_open: Callable[..., int] = os.open
    if problem == "no memory":
        module.os.memfd_create = lambda *_: (_ for _ in ()).throw(OSError("out of files"))
    elif rank == size - 1:

        def other_file(path: str, flags: int) -> int:
            """As in another container: the path leads to something else."""
            return real_open("/dev/zero", flags)

        module.os.open = other_file
    try:
        with communicator(rank, size, init_method) as shared:
            return shared.remark, shared.all_reduce(torch.full((3,), float(rank + 1))).tolist()
    finally:
        module.os.open = real_open


def disagree(rank: int, size: int, init_method: str) -> str:
    """Let each rank come with another number of floats; return what it is told."""
    with communicator(rank, size, init_method) as shared:
        try:
            shared.all_reduce(torch.zeros(10 + rank))
        except RuntimeError as error:
            return str(error)
    return ""
