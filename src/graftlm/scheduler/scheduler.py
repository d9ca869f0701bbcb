"""Lets computed tokens of each request catch up with known ones, under one token budget.

There is no prefill or decode phase. It does not know what a token means, nor how a step is executed.
"""

from __future__ import annotations

import logging
from bisect import insort

from graftlm.config import EngineConfig
from graftlm.contracts.errors import InvalidParameter
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate
from graftlm.contracts.stats import StepStats
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.scheduler.block_tables import BlockTables
from graftlm.scheduler.pacing import PrefillPacing
from graftlm.scheduler.policy import SchedulingPolicy
from graftlm.scheduler.request import Request, RequestState

logger = logging.getLogger(__name__)


class Scheduler:
    """Plans steps and takes in their results.

    `schedule` counts the planned tokens as computed at once and `update` is given the plan it belongs to, so a
    caller may plan the next step while the last one is still being executed, as long as plans are executed in
    order: a request whose next token is still being sampled just sits such a plan out.
    """

    def __init__(self, config: EngineConfig, *, num_blocks: int, block_size: int) -> None:
        self._token_budget = config.scheduler.max_num_batched_tokens
        self._max_num_seqs = config.scheduler.max_num_seqs
        self._pacing = PrefillPacing(config.scheduler.itl_slo)
        self._policy = SchedulingPolicy(config.scheduler.scheduling_policy)
        self._vocab_size = int(config.model.hf_config.get("vocab_size") or 0)
        self._capacity = num_blocks * block_size
        self._max_model_len = min(config.model.max_model_len or self._capacity, self._capacity)
        self._blocks = BlockTables(
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching,
        )
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # both lists are sorted by the policy's key
        self._running: list[Request] = []
        self._finished_ids: list[str] = []  # the next plan tells the workers
        self._refusals: list[RequestUpdate] = []  # the next update tells the front end
        self._next_step_id = 0
        self._num_arrivals = 0
        self._stats = StepStats()

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has something to do or to tell."""
        return bool(self._requests or self._refusals)

    @property
    def num_free_blocks(self) -> int:
        return self._blocks.pool.num_free

    def add_request(self, engine_request: EngineRequest) -> None:
        """Let a request wait for its turn. One that can never be served ends with an error at the next update."""
        request_id = engine_request.request_id
        if request_id in self._requests:
            raise InvalidParameter("request_id", request_id, cure="a request with this id is still in progress")
        request = Request.from_engine_request(engine_request, arrival_order=self._num_arrivals)
        self._num_arrivals += 1
        problem = self._why_impossible(request)
        if problem is not None:
            logger.warning("request refused request_id=%s reason=%r", request_id, problem)
            self._refusals.append(
                RequestUpdate(request_id=request_id, finish_reason=FinishReason.ERROR, error=problem)
            )
            return
        self._requests[request_id] = request
        insort(self._waiting, request, key=self._policy.key)

    def abort(self, request_ids: list[str]) -> list[RequestUpdate]:
        """End requests at once, wherever they stand; ids that are not in progress are passed over."""
        updates = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                updates.append(self._finish(request, FinishReason.ABORT))
        return updates

    def schedule(self) -> StepPlan:
        """Plan one step: running requests first, then waiting ones, in the policy's order.

        Prefills get what the budget leaves to them, and beside settled streams no more than these can bear.
        """
        self._blocks.begin_step()
        plan = StepPlan(step_id=self._next_step_id, finished=self._finished_ids)
        self._next_step_id += 1
        self._finished_ids = []
        chunk_limit = self._pacing.begin_step(
            plan.step_id, self._running, num_waiting=len(self._waiting), budget=self._token_budget
        )
        budget, chunk_limit = self._schedule_running(plan, self._token_budget, chunk_limit)
        if not plan.preempted:
            self._schedule_waiting(plan, budget, chunk_limit)
        return plan

    def update(
        self, plan: StepPlan, result: StepResult, *, step_time_s: float | None = None
    ) -> list[RequestUpdate]:
        """Take in what the workers made of `plan`, and return what the front end must hear.

        `step_time_s`, how long the execution took, is what chunks of prefills are measured by; without it they are
        bounded by the budget alone.
        """
        self._pacing.observe(plan.step_id, step_time_s)
        updates, self._refusals = self._refusals, []
        for request_id in plan.num_scheduled_tokens:
            request = self._requests.get(request_id)
            # Aborted meanwhile; or aborted, and the id already in use again by one that this plan does not know.
            if request is None or request.first_step_id is None or request.first_step_id > plan.step_id:
                continue
            self._count_prompt_tokens(request)
            if (error := result.errors.get(request_id)) is not None:
                updates.append(self._finish(request, FinishReason.ERROR, error=error))
                continue
            if request.needs_prompt_logprobs and (entries := result.prompt_logprobs.get(request_id)):
                # By place, so that a prompt computed again after a preemption writes the same entries again.
                start = plan.num_computed_tokens_of(request_id)
                request.prompt_logprobs[start : start + len(entries)] = entries
            sampled = result.sampled_token_ids.get(request_id)
            if sampled:
                updates.append(self._take_sampled(request, sampled, result))
        return updates

    def stats(self) -> StepStats:
        """Return the numbers since the last call, which start anew."""
        stats, self._stats = self._stats, StepStats()
        stats.num_running = len(self._running)
        stats.num_waiting = len(self._waiting)
        stats.kv_cache_usage = self._blocks.pool.usage
        return stats

    def _why_impossible(self, request: Request) -> str | None:
        if request.num_tokens == 0:
            return "the prompt has no tokens"
        if request.num_tokens > self._max_model_len:
            return (
                f"the prompt has {request.num_tokens} tokens, but only {self._max_model_len} fit into the context "
                f"and the KV cache ({self._capacity} tokens); shorten it, or start the server with a larger "
                "--max-model-len or --kv-cache-memory-bytes"
            )
        if min(request.token_ids) < 0 or (self._vocab_size and max(request.token_ids) >= self._vocab_size):
            return f"the prompt has token ids outside the vocabulary; use 0 to {self._vocab_size - 1}"
        return None

    def _schedule_running(self, plan: StepPlan, budget: int, chunk_limit: int) -> tuple[int, int]:
        """Continue running requests; return what is left of budget and limit. The last make room for the first.

        A prefill leaves one token of the budget to each request behind it, so that it does not stall them.
        """
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            num_behind = len(self._running) - index - 1
            num_known = request.num_tokens - request.num_computed_tokens
            count = min(num_known, max(1, budget - num_behind))
            if num_known > 1:
                count = min(count, chunk_limit)
                chunk_limit -= count
            if count > 0:
                if not self._make_room(request, request.num_computed_tokens + count, plan):
                    break
                plan.continued.append(request.describe_change())
                self._plan_tokens(request, count, plan)
                budget -= count
            index += 1
        return budget, chunk_limit

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Get blocks for `num_tokens` tokens, from the last running requests if need be.

        False if the request itself was the last. It ends: the first of all has room when it is alone.
        """
        while not self._blocks.grow(request, num_tokens):
            victim = self._running.pop()
            self._preempt(victim)
            plan.preempted.append(victim.request_id)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's memory; what it computed is computed again when its turn comes."""
        logger.debug("request preempted request_id=%s tokens=%d", request.request_id, request.num_tokens)
        self._blocks.free(request)
        request.forget_computed()
        request.state = RequestState.WAITING
        insort(self._waiting, request, key=self._policy.key)
        self._stats.num_preemptions += 1

    def _schedule_waiting(self, plan: StepPlan, budget: int, chunk_limit: int) -> None:
        """Admit waiting requests. Nobody is passed by for want of memory, so that nobody starves.

        A request whose next prefix block another one computes in this very step is held back: in the next step
        it can reuse that block. Running ones keep a block each to grow into.
        """
        held_back: list[Request] = []
        budget = min(budget, chunk_limit)
        while self._waiting and budget > 0 and len(self._running) < self._max_num_seqs:
            request = self._waiting[0]
            match = self._blocks.match(request)
            if match.being_computed:
                held_back.append(self._waiting.pop(0))
                continue
            if not self._blocks.admit(request, match, num_spare_blocks=len(self._running)):
                break
            self._waiting.pop(0)
            self._start(request, plan)
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            self._plan_tokens(request, count, plan)
            budget -= count
        self._waiting[:0] = held_back

    def _start(self, request: Request, plan: StepPlan) -> None:
        request.state = RequestState.RUNNING
        insort(self._running, request, key=self._policy.key)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens
            if self._blocks.prefix_cache is not None:
                self._stats.prefix_cache_queries += request.num_tokens
                self._stats.prefix_cache_hits += request.num_computed_tokens
        if request.first_step_id is None:
            request.first_step_id = plan.step_id
        plan.new.append(request.describe_all())

    def _plan_tokens(self, request: Request, count: int, plan: StepPlan) -> None:
        plan.num_scheduled_tokens[request.request_id] = count
        self._pacing.count_tokens(request, count)
        request.num_computed_tokens += count
        self._blocks.register_computed(request)

    def _count_prompt_tokens(self, request: Request) -> None:
        """Count each prompt token once, cached or computed, however often it is computed."""
        done = min(request.num_computed_tokens, request.num_prompt_tokens)
        if done > request.num_prompt_tokens_counted:
            self._stats.num_prompt_tokens += done - request.num_prompt_tokens_counted
            request.num_prompt_tokens_counted = done

    def _take_sampled(self, request: Request, sampled: list[int], result: StepResult) -> RequestUpdate:
        update = RequestUpdate(
            request_id=request.request_id,
            logprobs=result.logprobs.get(request.request_id, []),
            num_cached_tokens=request.num_cached_tokens or 0,
        )
        if request.needs_prompt_logprobs:
            update.prompt_logprobs = request.prompt_logprobs
            request.prompt_logprobs = []
        for token_id in sampled:
            request.token_ids.append(token_id)
            update.new_token_ids.append(token_id)
            self._stats.num_generation_tokens += 1
            ending = request.ending(self._max_model_len)
            if ending is not None:
                update.finish_reason, update.stop_reason = ending
                self._release(request)
                break
        update.logprobs = update.logprobs[: len(update.new_token_ids)]
        return update

    def _finish(self, request: Request, reason: FinishReason, *, error: str | None = None) -> RequestUpdate:
        self._release(request)
        return RequestUpdate(
            request_id=request.request_id,
            finish_reason=reason,
            num_cached_tokens=request.num_cached_tokens or 0,
            error=error,
        )

    def _release(self, request: Request) -> None:
        """Let go of a request wherever it stands, and of its blocks."""
        queue = self._running if request.state is RequestState.RUNNING else self._waiting
        queue.remove(request)
        self._blocks.free(request)
        request.state = RequestState.FINISHED
        del self._requests[request.request_id]
        if request.known_to_workers:
            self._finished_ids.append(request.request_id)
