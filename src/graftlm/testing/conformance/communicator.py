"""The conformance suite of device communicators, over two real processes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from graftlm.contracts.communicator import DeviceCommunicator
from graftlm.ops.examples import fresh
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.elsewhere import FailedElsewhere, run_ranks
from graftlm.testing.suite import Suite

Answers = dict[str, list[Any]]


class CommunicatorConformance(Suite):
    """Subclass it with `subject` naming a DeviceCommunicator class that runs on the CPU."""

    contract = "graftlm.contracts.communicator.DeviceCommunicator"
    #: The backend of torch.distributed that its group has.
    dist_backend: ClassVar[str] = "gloo"

    def test_it_is_a_complete_communicator_class(self) -> None:
        """A subclass of DeviceCommunicator with all collectives, constructed with group, device and name."""
        cls = self.complete_class(DeviceCommunicator)
        try:
            inspect.signature(cls).bind(group=None, device=None, name="tp")
        except TypeError as error:
            self.fail(f"it cannot be constructed with group, device and name: {error}")

    def test_all_reduce_sums(self) -> None:
        """`all_reduce` returns the sum over ranks on each of them, in the tensor's own shape and format."""
        self._expect("all_reduce", lambda a, b: (a + b, a + b))

    def test_all_gather_joins_in_rank_order(self) -> None:
        """`all_gather` returns all ranks' tensors along `dim`, in rank order, and leaves its input as it is."""
        self._expect("all_gather -1", lambda a, b: (torch.cat((a, b), -1),) * 2)
        self._expect("all_gather 0", lambda a, b: (torch.cat((a, b), 0),) * 2)

    def test_gather_joins_on_one_rank(self) -> None:
        """`gather` returns what `all_gather` does on rank `dst`, and None elsewhere."""
        self._expect("gather to 0", lambda a, b: (torch.cat((a, b), -1), None))
        self._expect("gather to 1", lambda a, b: (None, torch.cat((a, b), -1)))

    def test_broadcast_carries_one_ranks_tensor(self) -> None:
        """`broadcast` returns rank `src`'s tensor on every rank."""
        self._expect("broadcast from 0", lambda a, b: (a, a))
        self._expect("broadcast from 1", lambda a, b: (b, b))

    def test_an_answer_stays_as_it_is(self) -> None:
        """No buffer is handed out twice: what a call returned does not change with the next one."""
        for rank, answers in enumerate(self._answers()):
            changed = _named(answers["kept"])
            self.require(not changed, f"on rank {rank}, a later call changes the answer of {changed}")

    def test_inputs_are_left_unchanged(self) -> None:
        """Only `all_reduce` and `broadcast` may overwrite their input."""
        for rank, answers in enumerate(self._answers()):
            changed = _named(answers["unchanged"])
            self.require(not changed, f"on rank {rank}, {changed} changes its input")

    def _expect(self, name: str, expected: Any) -> None:
        for place, inputs in enumerate(zip(*(example_tensors(rank) for rank in range(2)), strict=True)):
            for rank, wanted in enumerate(expected(*inputs)):
                found = self._answers()[rank][name][place]
                what = f"{name} of {list(inputs[0].shape)} {inputs[0].dtype} on rank {rank}"
                if wanted is None:
                    self.require(found is None, f"{what} returns a tensor, not None")
                    continue
                self.require(found is not None, f"{what} returns None")
                shape, dtype, numbers = found
                self.require(shape == list(wanted.shape), f"{what} has shape {shape}, not {list(wanted.shape)}")
                self.require(dtype == str(wanted.dtype), f"{what} is {dtype}, not {wanted.dtype}")
                self.require(
                    numbers == wanted.double().flatten().tolist(), f"{what} has other numbers than it should"
                )

    def _answers(self) -> list[Answers]:
        try:
            return _ask_ranks(self.subject_path(), self.dist_backend)
        except FailedElsewhere as error:
            self.fail(f"a rank raises: {error}")


def _named(kept: list[tuple[str, bool]]) -> str:
    """Name the calls that did not keep what they should, each once."""
    return ", ".join(dict.fromkeys(name for name, good in kept if not good))


@functools.lru_cache(maxsize=8)
def _ask_ranks(path: str, dist_backend: str) -> list[Answers]:
    return run_ranks("graftlm.testing.conformance.communicator:answers_of_rank", path, dist_backend)


def example_tensors(rank: int) -> list[torch.Tensor]:
    """Whole numbers, whose sums are exact in every format: one row, many, none, and columns that lie apart."""
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12) + 100 * rank
    views = [base, base[:1], base[:0], base[:, 3:7], base.to(torch.bfloat16)[:2, :2], base.to(torch.int64)]
    return [fresh(view) for view in views]


def answers_of_rank(rank: int, size: int, init_method: str, path: str, dist_backend: str) -> Answers:
    """Call every collective on every example; called in each of the processes."""
    import torch.distributed as dist

    from graftlm.distributed import groups

    cls = resolve_class_path(path)
    groups._keep_gloo_on_loopback(init_method)
    dist.init_process_group(dist_backend, init_method=init_method, world_size=size, rank=rank)
    communicator: DeviceCommunicator = cls(group=dist.group.WORLD, device=torch.device("cpu"), name="tp")
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
        "all_reduce": communicator.all_reduce,
        "all_gather -1": communicator.all_gather,
        "all_gather 0": lambda t: communicator.all_gather(t, 0),
        "gather to 0": communicator.gather,
        "gather to 1": lambda t: communicator.gather(t, 1),
        "broadcast from 0": communicator.broadcast,
        "broadcast from 1": lambda t: communicator.broadcast(t, 1),
    }
    found: Answers = {"unchanged": [], "kept": []}
    live: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for name, call in calls.items():
        found[name] = []
        for tensor in example_tensors(rank):
            before = tensor.clone()
            answer = call(tensor)
            if name.startswith(("all_gather", "gather")):
                found["unchanged"].append((name, torch.equal(before, tensor)))
            if answer is None:
                found[name].append(None)
                continue
            found[name].append((list(answer.shape), str(answer.dtype), answer.double().flatten().tolist()))
            live.append((name, answer, answer.clone()))
    found["kept"] = [(name, torch.equal(answer, copy)) for name, answer, copy in live]
    dist.destroy_process_group()
    return found
