"""A fake executor: a deterministic model over a real paged cache, in pure Python.

It checks what a true worker cannot: that each block read holds exactly the prefix it should.
"""

from __future__ import annotations

import dataclasses
import hashlib

from graftlm.config import EngineConfig
from graftlm.contracts.request import EngineRequest, RequestUpdate, TokenLogprobs
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.scheduler import Scheduler

VOCAB_SIZE = 7


def next_token(token_ids: list[int]) -> int:
    """The fake model: the next token depends on all tokens before it."""
    return hashlib.blake2b(bytes(token_ids), digest_size=2).digest()[0] % VOCAB_SIZE


def expected_output(prompt: list[int], max_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def make_config(
    *,
    max_num_seqs: int = 8,
    token_budget: int = 64,
    policy: str = "fcfs",
    max_model_len: int | None = None,
    prefix_caching: bool = True,
) -> EngineConfig:
    config = EngineConfig()
    config.scheduler.max_num_seqs = max_num_seqs
    config.scheduler.max_num_batched_tokens = token_budget
    config.scheduler.scheduling_policy = policy
    config.model.max_model_len = max_model_len
    config.model.hf_config = {"vocab_size": VOCAB_SIZE}
    config.cache.enable_prefix_caching = prefix_caching
    return config


def make_request(
    request_id: str, prompt: list[int], *, priority: int = 0, eos: tuple[int, ...] = (), **params: object
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(**params),  # type: ignore[arg-type]
        eos_token_ids=list(eos),
        priority=priority,
    )


@dataclasses.dataclass
class KnownRequest:
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    prompt_logprobs: bool


class FakeExecutor:
    """Executes plans as workers must, and asserts that they can be executed."""

    def __init__(self, *, num_blocks: int, block_size: int, token_budget: int, max_num_seqs: int) -> None:
        self.block_size = block_size
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs
        self.num_blocks = num_blocks
        self.cache: dict[tuple[int, int], tuple[int, ...]] = {}
        self.known: dict[str, KnownRequest] = {}
        self.num_computed = 0

    def execute_step(self, plan: StepPlan) -> StepResult:
        for request_id in (*plan.finished, *plan.preempted):
            del self.known[request_id]
        starts = self._learn(plan)
        assert sum(plan.num_scheduled_tokens.values()) <= self.token_budget
        assert len(self.known) <= self.max_num_seqs
        assert set(starts) == set(plan.num_scheduled_tokens)
        self._check_sharing()

        result = StepResult(step_id=plan.step_id)
        # Reads are checked before anything is written: a plan may not rely on what it computes itself.
        for request_id in plan.num_scheduled_tokens:
            self._check_reads(self.known[request_id], starts[request_id])
        for request_id, count in plan.num_scheduled_tokens.items():
            assert count > 0
            request, start = self.known[request_id], starts[request_id]
            assert start + count <= len(request.token_ids)
            for position in range(start, start + count):
                self.cache[self._slot(request, position)] = tuple(request.token_ids[: position + 1])
            self.num_computed += count
            if start + count == len(request.token_ids):
                result.sampled_token_ids[request_id] = [next_token(request.token_ids)]
            last = min(start + count, request.num_prompt_tokens - 1)
            if request.prompt_logprobs and last > start:
                result.prompt_logprobs[request_id] = [
                    TokenLogprobs(request.token_ids[i + 1], -float(i), 1) for i in range(start, last)
                ]
        return result

    def _learn(self, plan: StepPlan) -> dict[str, int]:
        starts = {}
        for new in plan.new:
            assert new.request_id not in self.known
            wants = new.params.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens
            self.known[new.request_id] = KnownRequest(
                list(new.token_ids), new.num_prompt_tokens, list(new.block_ids), wants
            )
            starts[new.request_id] = new.num_computed_tokens
        for continued in plan.continued:
            request = self.known[continued.request_id]
            request.token_ids += continued.new_token_ids
            request.block_ids += continued.new_block_ids
            starts[continued.request_id] = continued.num_computed_tokens
        return starts

    def _slot(self, request: KnownRequest, position: int) -> tuple[int, int]:
        return request.block_ids[position // self.block_size], position % self.block_size

    def _check_reads(self, request: KnownRequest, start: int) -> None:
        for position in range(start):
            content = self.cache.get(self._slot(request, position))
            assert content == tuple(request.token_ids[: position + 1]), "a block does not hold its prefix"

    def _check_sharing(self) -> None:
        """No request holds a block twice, and blocks are shared only at the same place of equal prefixes."""
        place: dict[int, tuple[int, ...]] = {}
        for request in self.known.values():
            assert len(set(request.block_ids)) == len(request.block_ids)
            for index, block_id in enumerate(request.block_ids):
                assert 0 <= block_id < self.num_blocks
                prefix = tuple(request.token_ids[: (index + 1) * self.block_size])
                assert place.setdefault(block_id, prefix) == prefix, "a block is used by two"


class Engine:
    """Scheduler and fake executor in a loop, collecting what each request got."""

    def __init__(self, config: EngineConfig, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.scheduler = Scheduler(config, num_blocks=num_blocks, block_size=block_size)
        self.executor = FakeExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            token_budget=config.scheduler.max_num_batched_tokens,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        self.outputs: dict[str, list[int]] = {}
        self.updates: dict[str, list[RequestUpdate]] = {}
        self.num_steps = 0

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.take(self.scheduler.update(plan, self.executor.execute_step(plan)))
        self.num_steps += 1
        return plan

    def take(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.updates.setdefault(update.request_id, []).append(update)
            self.outputs.setdefault(update.request_id, []).extend(update.new_token_ids)

    def run(self, *, max_steps: int = 5000) -> None:
        while self.scheduler.has_unfinished:
            self.step()
            assert self.num_steps < max_steps, "requests do not end"

    def finish_reason(self, request_id: str) -> str | None:
        reasons = [u.finish_reason for u in self.updates.get(request_id, []) if u.finish_reason is not None]
        assert len(reasons) <= 1, "a request ended twice"
        return reasons[0].value if reasons else None

    def assert_no_block_leaked(self) -> None:
        assert self.scheduler.num_free_blocks == self.num_blocks
        pool = self.scheduler._blocks.pool
        assert all(pool.num_holders(block_id) == 0 for block_id in range(self.num_blocks))
