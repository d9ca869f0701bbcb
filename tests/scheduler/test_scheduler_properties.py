"""What holds for the scheduler whatever the trace."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_fakes import VOCAB_SIZE, Engine, expected_output, make_config, make_request

PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclasses.dataclass
class Arrival:
    step: int
    prompt: list[int]
    max_tokens: int
    priority: int
    abort_after: int | None
    prompt_logprobs: bool


@dataclasses.dataclass
class Trace:
    policy: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    prefix_caching: bool
    overlapped: bool
    arrivals: list[Arrival]
    step_times_s: list[float | None] = dataclasses.field(default_factory=lambda: [None])
    """of one step after another, from the beginning again"""

    def engine(self) -> Engine:
        config = make_config(
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            policy=self.policy,
            prefix_caching=self.prefix_caching,
        )
        return Engine(config, num_blocks=self.num_blocks, block_size=self.block_size)

    @property
    def capacity(self) -> int:
        return self.num_blocks * self.block_size


# Few distinct stems, so that prefixes are often equal.
STEMS = [[0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3, 5], [1] * 12, [0, 1, 2, 3, 1, 1, 1, 1, 2, 2, 2], []]
prompts = st.builds(
    lambda stem, cut, tail: stem[:cut] + tail,
    st.sampled_from(STEMS),
    st.integers(0, 14),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
)
arrivals = st.builds(
    Arrival,
    step=st.integers(0, 12),
    prompt=prompts,
    max_tokens=st.integers(1, 14),
    priority=st.integers(-1, 2),
    abort_after=st.one_of(st.none(), st.integers(0, 10)),
    prompt_logprobs=st.booleans(),
)
traces = st.builds(
    Trace,
    policy=st.sampled_from(["fcfs", "priority"]),
    block_size=st.sampled_from([1, 2, 4]),
    num_blocks=st.integers(2, 24),
    max_num_seqs=st.integers(1, 6),
    token_budget=st.integers(1, 40),
    prefix_caching=st.booleans(),
    overlapped=st.booleans(),
    arrivals=st.lists(arrivals, min_size=1, max_size=9),
    step_times_s=st.lists(st.one_of(st.none(), st.floats(0, 2)), min_size=1, max_size=9),
)


def run(trace: Trace) -> Engine:
    """Run the trace; overlapped, each step is planned before the result of the one before it is taken in."""
    engine = trace.engine()
    scheduler = engine.scheduler
    todo = sorted(enumerate(trace.arrivals), key=lambda pair: pair[1].step)
    aborts = {
        f"r{i}": arrival.step + arrival.abort_after
        for i, arrival in enumerate(trace.arrivals)
        if arrival.abort_after is not None
    }
    step, in_flight = 0, None
    times = itertools.cycle(trace.step_times_s)
    while todo or scheduler.has_unfinished or in_flight is not None:
        assert step < 4000, "requests do not end"
        while todo and todo[0][1].step <= step:
            index, arrival = todo.pop(0)
            wanted = 0 if arrival.prompt_logprobs else None
            scheduler.add_request(
                make_request(
                    f"r{index}",
                    arrival.prompt,
                    max_tokens=arrival.max_tokens,
                    priority=arrival.priority,
                    prompt_logprobs=wanted,
                )
            )
        due = [name for name, at in aborts.items() if at == step]
        plan = scheduler.schedule()
        if trace.overlapped:
            engine.take(scheduler.abort(due))
            if in_flight is not None:
                engine.take(scheduler.update(*in_flight, step_time_s=next(times)))
            in_flight = (plan, engine.executor.execute_step(plan))
            if not plan.num_scheduled_tokens:
                engine.take(scheduler.update(*in_flight, step_time_s=next(times)))
                in_flight = None
        else:
            result = engine.executor.execute_step(plan)
            engine.take(scheduler.abort(due))
            engine.take(scheduler.update(plan, result, step_time_s=next(times)))
        step += 1
    return engine


def check(trace: Trace, engine: Engine) -> None:
    engine.assert_no_block_leaked()
    for index, arrival in enumerate(trace.arrivals):
        name = f"r{index}"
        reason = engine.finish_reason(name)
        if reason == "error":
            assert len(arrival.prompt) > trace.capacity
            continue
        num_possible = min(arrival.max_tokens, max(1, trace.capacity - len(arrival.prompt)))
        expected = expected_output(arrival.prompt, num_possible)
        if reason == "abort":
            assert engine.outputs[name] == expected[: len(engine.outputs[name])]
        else:
            assert reason == "length"
            assert engine.outputs[name] == expected
        with_tokens = [update for update in engine.updates[name] if update.new_token_ids]
        if arrival.prompt_logprobs and with_tokens:
            assert [e.token_id for e in with_tokens[0].prompt_logprobs] == arrival.prompt[1:]
            assert all(not update.prompt_logprobs for update in with_tokens[1:])


@PROPERTY
@given(traces)
def test_every_request_ends_with_its_own_tokens_and_no_block_is_leaked_or_used_twice(trace: Trace) -> None:
    """Whatever arrives, is aborted or preempted: right tokens, every request ends, every block comes back."""
    engine = run(trace)

    check(trace, engine)


@PROPERTY
@given(traces, st.integers(1, 40), st.integers(2, 24))
def test_tokens_do_not_depend_on_chunks_or_memory(trace: Trace, token_budget: int, more_blocks: int) -> None:
    """Another budget and a larger cache change when tokens come, never which."""
    trace = dataclasses.replace(
        trace,
        arrivals=[dataclasses.replace(a, abort_after=None) for a in trace.arrivals],
        num_blocks=max(trace.num_blocks, -(-28 // trace.block_size) + 14),
    )
    other = dataclasses.replace(
        trace, token_budget=token_budget, num_blocks=trace.num_blocks + more_blocks, prefix_caching=True
    )

    assert run(trace).outputs == run(other).outputs


@PROPERTY
@given(traces)
def test_the_same_trace_gives_the_same_plans(trace: Trace) -> None:
    """Nothing depends on anything but the trace."""
    first, second = run(trace), run(trace)

    assert first.updates == second.updates
    assert first.executor.num_computed == second.executor.num_computed


@settings(max_examples=40, deadline=None)
@given(traces)
def test_a_request_ends_although_others_keep_coming(trace: Trace) -> None:
    """Under FCFS, and under priority when newcomers are not more urgent, the first one does not starve."""
    trace.num_blocks = max(trace.num_blocks, 40 // trace.block_size)
    engine = trace.engine()
    engine.scheduler.add_request(make_request("first", STEMS[0], max_tokens=14, priority=1))

    for step in range(400):
        if engine.finish_reason("first") is not None:
            break
        newcomer = trace.arrivals[step % len(trace.arrivals)]
        priority = 1 if trace.policy == "priority" else newcomer.priority
        engine.scheduler.add_request(
            make_request(f"n{step}", newcomer.prompt, max_tokens=newcomer.max_tokens, priority=priority)
        )
        engine.step()

    assert engine.finish_reason("first") == "length"
    assert engine.outputs["first"] == expected_output(STEMS[0], 14)
