"""Writes the steps of whole scenarios, and brings a worker up to take them, without scheduler or executor.

What requests answer is known before, from the model itself, so that every rank can take the same steps alone.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import ContinuedRequest, NewRequest, StepPlan, StepResult
from graftlm.models.llama import LlamaForCausalLM
from graftlm.testing.checkpoints import tiny_llama
from graftlm.testing.host import plugin_host
from graftlm.testing.model_steps import config_of, load_class, logits_of

NUM_BLOCKS = 24
#: Longer than a block of 32 tokens; shorter than 64, where the reference ends.
PROMPTS = (
    tuple((7 * i * i + 31 * i + 5) % 260 for i in range(40)), (40, 41, 42), (7, 200, 1, 9, 30, 77, 120),
)  # fmt: skip
NUM_OUTPUTS = 5


def worker_config(folder: Path, *, ranks: int = 1, **cache: Any) -> EngineConfig:
    """Return the configuration that a worker gets for the checkpoint, frozen; `cache` sets fields of `cache`."""
    config = config_of(folder)
    config.parallel.tensor_parallel_size = ranks
    config.parallel.threads_per_worker = 1
    config.scheduler.max_num_seqs = 4
    for name, value in cache.items():
        setattr(config.cache, name, value)
    config.freeze()
    return config


@functools.cache
def reference_outputs() -> tuple[tuple[int, ...], ...]:
    """Continue PROMPTS greedily, every prompt alone and computed anew for each token."""
    with tempfile.TemporaryDirectory(prefix="graftlm-worker-") as folder, plugin_host(role="worker"):
        model = load_class(LlamaForCausalLM, tiny_llama().write(Path(folder)))
        outputs = []
        for prompt in PROMPTS:
            tokens = list(prompt)
            for _ in range(NUM_OUTPUTS):
                tokens.append(int(logits_of(model, [tokens])[0][-1].argmax()))
            outputs.append(tuple(tokens[len(prompt) :]))
    return tuple(outputs)


class Steps:
    """A scenario: `plans`, and for each the tokens that must come of it. Requests are numbers of PROMPTS."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.plans: list[StepPlan] = []
        self.expected: list[dict[str, list[int]]] = []
        self.blocks: dict[str, list[int]] = {}
        self._free = list(range(1, NUM_BLOCKS))  # taken from the end, so that no table is in order
        self._tokens: dict[str, tuple[int, ...]] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def add(self, number: int, *, name: str = "", known_outputs: int = 0, shared: Sequence[int] = ()) -> str:
        """Bring a request, of which some outputs may be known; the blocks `shared` are computed already."""
        name = name or f"request {number}"
        prompt = PROMPTS[number]
        self._tokens[name] = prompt + reference_outputs()[number]
        self._prompt_tokens[name] = len(prompt)
        self._known[name] = len(prompt) + known_outputs
        self._computed[name] = len(shared) * self.block_size
        self.blocks[name] = list(shared)
        return name

    def step(self, counts: dict[str, int], *, finished: Sequence[str] = (), preempted: Sequence[str] = ()) -> None:
        """Compute so many tokens of each request; -1 means all that are known."""
        plan = StepPlan(step_id=len(self.plans), finished=list(finished), preempted=list(preempted))
        for name in (*finished, *preempted):
            self._free.extend(self.blocks.pop(name))
            self._told.pop(name, None)
        expected: dict[str, list[int]] = {}
        for name, count in counts.items():
            known, computed = self._known[name], self._computed[name]
            count = known - computed if count < 0 else count
            plan.num_scheduled_tokens[name] = count
            self._write(plan, name, upto=computed + count)
            self._computed[name] = computed + count
            if computed + count == known:
                expected[name] = [self._tokens[name][known]]
                self._known[name] = known + 1
        self.plans.append(plan)
        self.expected.append(expected)

    def _write(self, plan: StepPlan, name: str, *, upto: int) -> None:
        blocks, tokens, known = self.blocks[name], self._tokens[name], self._known[name]
        before = len(blocks)
        while len(blocks) * self.block_size < upto:
            blocks.append(self._free.pop())
        if name in self._told:
            plan.continued.append(
                ContinuedRequest(
                    request_id=name, num_computed_tokens=self._computed[name],
                    new_token_ids=list(tokens[self._told[name] : known]), new_block_ids=blocks[before:],
                )
            )  # fmt: skip
        else:
            plan.new.append(
                NewRequest(
                    request_id=name, token_ids=list(tokens[:known]), num_prompt_tokens=self._prompt_tokens[name],
                    params=SamplingParams(temperature=0, max_tokens=NUM_OUTPUTS, ignore_eos=True),
                    block_ids=list(blocks), num_computed_tokens=self._computed[name],
                )
            )  # fmt: skip
        self._told[name] = known


def alone(block_size: int, number: int = 0) -> Steps:
    """One request: its prompt in one step, then a token a step."""
    steps = Steps(block_size)
    name = steps.add(number)
    for _ in range(NUM_OUTPUTS):
        steps.step({name: -1})
    return steps


def in_chunks(block_size: int) -> Steps:
    """One request whose prompt is cut into steps, none of which but the last may bring a token."""
    steps = Steps(block_size)
    name = steps.add(0)
    for count in (7, 1, 16, -1, -1, -1):
        steps.step({name: count})
    return steps


def side_by_side(block_size: int) -> Steps:
    """Three requests that come and go at different times; a prompt is cut while others answer."""
    steps = Steps(block_size)
    first, second = steps.add(1), steps.add(0)
    steps.step({first: -1, second: 9})
    third = steps.add(2)
    steps.step({second: 20, first: -1, third: -1})
    steps.step({third: -1, second: -1, first: -1})
    steps.step({second: -1, third: -1}, finished=[first])
    steps.step({third: -1, second: -1})
    return steps


def preempted_and_back(block_size: int) -> Steps:
    """A request that must give its blocks to another one, and is computed again later, in other blocks."""
    steps = Steps(block_size)
    name = steps.add(0)
    for _ in range(2):
        steps.step({name: -1})
    other = steps.add(1, name="another")
    steps.step({other: -1}, preempted=[name])
    steps.step({other: -1})
    again = steps.add(0, known_outputs=2)
    steps.step({other: -1, again: -1})
    steps.step({again: -1}, finished=[other])
    return steps


def sharing_a_block(block_size: int) -> Steps:
    """Two requests with one prompt: the second one's first block is the first one's, computed already."""
    steps = Steps(block_size)
    first = steps.add(0)
    steps.step({first: -1})
    second = steps.add(0, name="the same prompt", shared=steps.blocks[first][:1])
    steps.step({second: -1, first: -1})
    steps.step({second: -1, first: -1})
    return steps


def names_used_again(block_size: int) -> Steps:
    """A request ends; the next one has its name, its blocks, and another prompt."""
    steps = Steps(block_size)
    name = steps.add(2, name="a name")
    steps.step({name: -1})
    steps.step({name: -1})
    steps.step({}, finished=[name])
    steps.add(1, name=name)
    steps.step({name: -1})
    steps.step({name: -1})
    return steps


SCENARIOS = (alone, in_chunks, side_by_side, preempted_and_back, sharing_a_block, names_used_again)


def bring_up(cls: Any, config: EngineConfig, *, rank: int = 0, init_method: str = "") -> Any:
    """Call what the executor calls before the cache is known; returns the worker."""
    worker = cls(config, rank=rank, local_rank=rank, distributed_init_method=init_method)
    worker.init_device()
    worker.load_model()
    return worker


def take(worker: Any, steps: Steps) -> list[StepResult | None]:
    """Execute every plan of a scenario, then let the worker forget its requests."""
    results = [worker.execute_step(plan) for plan in steps.plans]
    worker.execute_step(StepPlan(step_id=len(results), finished=sorted(steps.blocks)))
    return results


def problem_of(steps: Steps, results: Sequence[StepResult | None]) -> str:
    """Compare a scenario's results with what must come of it; returns the first problem, or ""."""
    for plan, expected, found in zip(steps.plans, steps.expected, results, strict=True):
        where = f"step {plan.step_id}"
        if not isinstance(found, StepResult):
            return f"{where}: it returns a {type(found).__name__}, no StepResult"
        if found.step_id != plan.step_id:
            return f"{where}: its result has step_id={found.step_id}"
        if found.errors:
            return f"{where}: it reports {found.errors}"
        tokens = found.sampled_token_ids
        if early := sorted(tokens.keys() - expected.keys()):
            return f"{where}: a token comes for {', '.join(early)}, whose known tokens go on"
        if missing := sorted(expected.keys() - tokens.keys()):
            return f"{where}: no token comes for {', '.join(missing)}"
        for name, ids in tokens.items():
            if not all(type(i) is int for i in ids):
                return f"{where}: {name} gets {ids!r}, which are no whole numbers"
            if ids != expected[name]:
                return f"{where}: {name} gets {ids}, and the model says {expected[name]}"
    return ""
