"""The conformance suite of workers, brought up and driven as the executor does, over a tiny Llama."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.contracts.worker import KVCacheSpec, Worker
from graftlm.plugins import current_host
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.checkpoints import HEAD_SIZE, KV_HEADS, LAYERS, tiny_llama
from graftlm.testing.elsewhere import FailedElsewhere, elsewhere, run_ranks
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.suite import NotDeclared, Suite
from graftlm.testing.traces import watched
from graftlm.testing.worker_steps import (
    NUM_BLOCKS,
    PROMPTS,
    SCENARIOS,
    Steps,
    alone,
    bring_up,
    problem_of,
    reference_outputs,
    sharing_a_block,
    side_by_side,
    take,
    worker_config,
)

_HERE = "graftlm.testing.conformance.worker"
_METHODS: dict[str, tuple[str, ...]] = {
    "init_device": (), "load_model": (), "update_block_size": (), "get_kv_cache_spec": (),
    "determine_available_memory": (), "initialize_kv_cache": ("num_blocks",), "execute_step": ("plan",),
    "shutdown": (),
}  # fmt: skip


class WorkerConformance(Suite):
    """Subclass it with `subject` naming a worker class; `platform` is the one that it runs on.

    `distributions` are those whose plugins it needs beside it, such as its own.
    """

    contract = "graftlm.contracts.worker.Worker"
    platform: ClassVar[str] = "cpu"
    distributions: ClassVar[tuple[str | FakeDistribution, ...]] = ()
    #: How many ranks the tensor-parallel check starts; 1 leaves it out.
    ranks: ClassVar[int] = 2

    def test_it_is_a_worker_class(self) -> None:
        """A class with all methods of the contract, constructed with config, rank, local_rank and
        distributed_init_method, and called as the executor does.
        """
        cls = self.load()
        self.require(isinstance(cls, type), f"it is {cls!r}")
        missing = [name for name in _METHODS if not callable(getattr(cls, name, None))]
        self.require(not missing, f"it has no {', '.join(missing)}; subclass graftlm.worker.Worker")
        calls: dict[Callable[..., Any], tuple[Any, ...]] = {
            getattr(cls, name): (None, *args) for name, args in _METHODS.items()
        }
        try:
            inspect.signature(cls).bind(None, rank=0, local_rank=0, distributed_init_method="")
            for method, args in calls.items():
                inspect.signature(method).bind(*args)
        except TypeError as error:
            self.fail(f"the executor cannot call it: {error}; its signatures are those of {Worker.__module__}")

    def test_it_says_what_a_block_costs(self) -> None:
        """`update_block_size`, `get_kv_cache_spec` and `determine_available_memory` agree with each other, with the
        model, and with themselves when they are asked again.
        """
        with self._worker() as (worker, block_size):
            spec = self._call(worker, "get_kv_cache_spec")
            self.require(type(block_size) is int and block_size > 0, f"update_block_size returns {block_size!r}")
            self.require(isinstance(spec, KVCacheSpec), f"get_kv_cache_spec returns a {type(spec).__name__}")
            self.require(
                spec.block_size == block_size, f"its spec has block_size={spec.block_size}, it decided {block_size}"
            )
            shape = (spec.num_layers, spec.num_kv_heads, spec.head_size)
            self.require(
                shape == (LAYERS, KV_HEADS, HEAD_SIZE),
                f"its spec has {shape} layers, key-value heads and head size; the model has "
                f"{(LAYERS, KV_HEADS, HEAD_SIZE)}",
            )
            least = 2 * LAYERS * KV_HEADS * HEAD_SIZE * block_size  # keys and values, a byte each
            self.require(
                type(spec.block_bytes) is int and spec.block_bytes >= least,
                f"its spec has block_bytes={spec.block_bytes!r}; keys and values of a block are at least {least}",
            )
            self.require(self._call(worker, "get_kv_cache_spec") == spec, "its second spec differs from its first")
            memory = self._call(worker, "determine_available_memory")
            enough = type(memory) is int and memory >= spec.block_bytes
            self.require(enough, f"determine_available_memory returns {memory!r}; it must be bytes, for blocks")

    def test_the_user_decides(self) -> None:
        """--kv-cache-memory-bytes is the memory, and --block-size the block size, or an error that names it."""
        with self._worker(kv_cache_memory_bytes=12_345_678) as (worker, _):
            memory = self._call(worker, "determine_available_memory")
            self.require(memory == 12_345_678, f"the user said 12345678 bytes, and it takes {memory!r}")
        for size in (16, 32, 64, 128):
            try:
                with self._worker(block_size=size, refusals=True) as (_, said):
                    pass
            except GraftlmError:
                continue  # refused by name, as the contract of --block-size allows
            self.require(said == size, f"the user chose --block-size {size}, and it decides {said}")

    def test_steps_answer_as_the_model_does(self) -> None:
        """Whatever the plan: prompts whole or in chunks, requests side by side, preempted, or sharing blocks. A
        token comes exactly where a step reaches the last known token, and it is the model's.
        """
        with self._ready() as (worker, block_size):
            for scenario in SCENARIOS:
                steps = self._scenario(scenario, block_size)
                if steps is not None:
                    self._compare(scenario.__name__.replace("_", " "), steps, self._take(worker, steps))

    def test_no_state_from_request_to_request(self) -> None:
        """What other requests computed before leaves no trace: the same steps, the same result."""
        with self._ready() as (worker, block_size):
            first = self._take(worker, alone(block_size))
            self._take(worker, side_by_side(block_size))
            self.require(
                self._take(worker, alone(block_size)) == first, "after other requests it answers otherwise"
            )

    def test_plans_are_left_unchanged(self) -> None:
        """Every rank gets the same plan object where ranks share a process: it belongs to the scheduler."""
        with self._ready() as (worker, block_size):
            steps = side_by_side(block_size)
            before = msgspec.to_builtins(steps.plans)
            self._take(worker, steps)
            self.require(
                msgspec.to_builtins(steps.plans) == before, "execute_step changes the plan that it is given"
            )

    def test_an_empty_step_is_a_step(self) -> None:
        """A plan without tokens, as when requests only end, brings an empty StepResult of its number."""
        with self._ready() as (worker, _):
            for step_id in (0, 41):
                found = self._call(worker, "execute_step", StepPlan(step_id=step_id))
                good = isinstance(found, StepResult) and found.step_id == step_id and not found.sampled_token_ids
                self.require(good, f"for a plan without tokens, step_id={step_id}, it returns {found!r}")

    def test_shutdown_is_always_safe(self) -> None:
        """`shutdown` may come twice, and after a start that failed anywhere; then another worker can start. Neither
        temporary files nor threads that hold the process stay behind.
        """
        before = set(threading.enumerate())
        threads = torch.get_num_threads()
        with self._host(), self._folder() as folder, watched() as traces:
            for stop in ("__init__", "init_device", "load_model"):
                worker = self.load()(worker_config(folder), rank=0, local_rank=0, distributed_init_method="")
                for method in list(_METHODS)[: {"__init__": 0, "init_device": 1, "load_model": 2}[stop]]:
                    self._call(worker, method)
                for time in ("", " a second time"):
                    try:
                        worker.shutdown()
                    except Exception as error:
                        self.fail(f"shutdown after {stop}{time} raises {type(error).__name__}: {error}")
        torch.set_num_threads(threads)
        self.require(not traces.left, f"it leaves {', '.join(traces.left)} in the temporary folder")
        left = [t.name for t in threading.enumerate() if t not in before and not t.daemon]
        self.require(not left, f"after shutdown it leaves threads that hold the process: {', '.join(left)}")

    def test_two_ranks_equal_one(self) -> None:
        """Ranks agree on the block size and take the same steps; rank 0 brings the model's tokens, others None."""
        if self.ranks < 2:
            raise NotDeclared("the suite says that it runs on one rank only")
        path = self.subject_path()
        with self._folder() as folder:
            try:
                answers = run_ranks(f"{_HERE}:take_on_rank", path, str(folder), self.platform, self.distributions)
            except FailedElsewhere as error:
                self.fail(f"a rank raises: {error}")
        (block_size, results), *others = answers
        for rank, (size, found) in enumerate(others, start=1):
            self.require(size == block_size, f"rank {rank} decides block_size={size}, rank 0 {block_size}")
            self.require(not any(found), f"rank {rank} returns {next(filter(None, found), None)!r}, not None")
        self._compare("on two ranks", side_by_side(block_size), msgspec.convert(results, list[StepResult]))

    def test_every_process_answers_alike(self) -> None:
        """Restarts agree: nothing depends on the process, its id or its hash seed."""
        path = self.subject_path()
        with self._folder() as folder:
            block_size, results = elsewhere().call(
                f"{_HERE}:take_on_rank", 0, 1, "", path, str(folder), self.platform, self.distributions
            )
        found = msgspec.convert(results, list[StepResult])
        self._compare("in another process", side_by_side(block_size), found)

    def _scenario(self, scenario: Callable[[int], Steps], block_size: int) -> Steps | None:
        """A block that is longer than the prompt cannot be shared."""
        return None if scenario is sharing_a_block and block_size >= len(PROMPTS[0]) else scenario(block_size)

    def _take(self, worker: Any, steps: Steps) -> list[StepResult | None]:
        try:
            return take(worker, steps)
        except Exception as error:
            self.fail(f"execute_step raises {type(error).__name__}: {error}")

    def _compare(self, what: str, steps: Steps, results: Sequence[StepResult | None]) -> None:
        problem = problem_of(steps, results)
        self.require(not problem, f"{what}, {problem}")

    def _call(self, worker: Any, method: str, *args: Any) -> Any:
        try:
            return getattr(worker, method)(*args)
        except Exception as error:
            self.fail(f"{method} raises {type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _worker(self, *, refusals: bool = False, **cache: Any) -> Iterator[tuple[Any, Any]]:
        """A worker that has its model, and its block size; GraftlmErrors pass where `refusals` are possible."""
        threads = torch.get_num_threads()
        reference_outputs()
        with self._host(), self._folder() as folder:
            try:
                worker = bring_up(self.load(), worker_config(folder, **cache))
                block_size = worker.update_block_size()
            except Exception as error:
                if refusals and isinstance(error, GraftlmError):
                    raise
                self.fail(f"its start raises {type(error).__name__}: {error}")
            try:
                yield worker, block_size
            finally:
                worker.shutdown()
                torch.set_num_threads(threads)

    @contextlib.contextmanager
    def _ready(self) -> Iterator[tuple[Any, int]]:
        """A worker with its cache, when nothing may be registered any more; and its block size."""
        with self._worker() as (worker, block_size):
            self._call(worker, "initialize_kv_cache", NUM_BLOCKS)
            current_host().frozen = True
            yield worker, block_size

    def _host(self) -> Any:
        return plugin_host(*self.distributions, platform=self.platform, role="worker")

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="graftlm-worker-") as folder:
            yield tiny_llama().write(Path(folder))


def take_on_rank(
    rank: int, size: int, init_method: str, path: str, folder: str, platform: str, distributions: tuple[Any, ...]
) -> tuple[int, list[Any]]:
    """Take the steps of requests side by side on one rank; returns its block size, and results as plain data."""
    reference_outputs()  # before this process is one of several ranks
    with plugin_host(*distributions, platform=platform, role="worker"):
        worker = bring_up(
            resolve_class_path(path), worker_config(Path(folder), ranks=size), rank=rank, init_method=init_method
        )
        try:
            block_size = worker.update_block_size()
            worker.initialize_kv_cache(NUM_BLOCKS)
            results = take(worker, side_by_side(block_size))
        finally:
            worker.shutdown()
    return block_size, msgspec.to_builtins(results)
