"""Prefills beside streams: how long these wait, in simulated time, where nothing depends on the machine."""

from __future__ import annotations

import statistics

import pytest
from scheduler_fakes import make_config, make_request
from scheduler_simulation import Costs, Simulation, p99

from graftlm.contracts.step import StepResult
from graftlm.scheduler import Scheduler
from graftlm.scheduler.pacing import SETTLED_TOKENS


def decoding_while_prompts_arrive(
    itl_slo: float | None, *, num_streams: int = 8, costs: Costs | None = None, every_s: float = 5.0
) -> Simulation:
    """Streams decode alone for three seconds; then prompts of 1,500 tokens arrive, one every few seconds."""
    simulation = Simulation(itl_slo=itl_slo, costs=costs)
    for i in range(num_streams):
        simulation.arrive(f"stream-{i}", at_s=0.002 * i, prompt=16, output=3000)
    for i in range(5):
        simulation.arrive(f"prompt-{i}", at_s=3 + every_s * i, prompt=1500, output=2)
    simulation.run(until_s=3 + 5 * every_s)
    return simulation


def waits_while_prompts_are_there(simulation: Simulation) -> list[float]:
    return [
        after - before
        for name, stream in simulation.streams.items()
        for before, after in zip(stream.moments_s, stream.moments_s[1:], strict=False)
        if name.startswith("stream") and before > 3
    ]


def usual_wait_s(simulation: Simulation) -> float:
    """The median step that only decodes; nothing else runs in the first three seconds."""
    return statistics.median(simulation.step_times_s[20:100])


@pytest.mark.parametrize("num_streams", [4, 8, 32])
def test_streams_wait_no_longer_than_asked_for_while_long_prompts_arrive(num_streams: int) -> None:
    """With itl_slo=1.5, p99 of all waits of the streams is within 1.5 times the usual wait, and prompts get on."""
    simulation = decoding_while_prompts_arrive(1.5, num_streams=num_streams, every_s=20.0)

    waits = waits_while_prompts_are_there(simulation)
    assert p99(waits) <= 1.5 * usual_wait_s(simulation)
    assert max(waits) < 2 * usual_wait_s(simulation)
    assert all(simulation.streams[f"prompt-{i}"].moments_s for i in range(3))


def test_thin_chunks_find_out_that_two_tokens_cost_less_than_twice_one() -> None:
    """One token costs 2.5 ms of the 3.9 that are planned, two cost 3.4: prompts get two, and the bound holds."""
    costs = Costs(row_ms=2.5, token_ms=0.9, prefill_step_ms=1.6, context_tokens=10**6)
    simulation = decoding_while_prompts_arrive(1.5, num_streams=1, costs=costs, every_s=10.0)

    chunks = [plan.num_scheduled_tokens.get("prompt-1", 0) for plan in simulation.plans]
    thin = [chunk for chunk in chunks if 0 < chunk < 100]
    assert sum(thin) / len(thin) > 1.7
    assert p99(waits_while_prompts_are_there(simulation)) <= 1.5 * usual_wait_s(simulation)


def test_bounded_steps_come_in_few_sizes() -> None:
    """Where a chunk has four tokens or more, the step's tokens are a multiple of four."""
    simulation = decoding_while_prompts_arrive(None)

    totals = [
        sum(plan.num_scheduled_tokens.values())
        for plan in simulation.plans
        if 4 <= max(plan.num_scheduled_tokens.values()) < 100
    ]
    assert sum(total % 4 == 0 for total in totals) > 0.95 * len(totals), "but for a prompt's last chunk"


def test_streams_wait_at_most_three_times_as_long_as_usual_by_default() -> None:
    """Without a wish the bound is three times, and the prompts' first tokens come sooner than with a tight one."""
    loose, tight = decoding_while_prompts_arrive(None), decoding_while_prompts_arrive(1.5)

    assert max(waits_while_prompts_are_there(loose)) <= 3 * usual_wait_s(loose)
    assert loose.streams["prompt-0"].ttft_s < tight.streams["prompt-0"].ttft_s / 2


def test_a_large_multiple_leaves_prompts_whole() -> None:
    """Whoever does not care about waits gets one step for a prompt, as if there were no streams."""
    simulation = decoding_while_prompts_arrive(1e6)

    chunks = [plan.num_scheduled_tokens.get("prompt-1") for plan in simulation.plans]
    assert [chunk for chunk in chunks if chunk] == [1500, 1]


def test_a_prompt_is_whole_when_nothing_decodes() -> None:
    """Nobody waits, so nothing is split but by the budget, also after steps have taught what they cost."""
    simulation = Simulation(itl_slo=1.1)
    simulation.arrive("first", at_s=0, prompt=100, output=30)
    simulation.arrive("second", at_s=100, prompt=3000, output=3)

    simulation.run()

    assert [next(iter(p.num_scheduled_tokens.values())) for p in simulation.plans[30:]] == [2048, 952, 1, 1]


@pytest.mark.parametrize("itl_slo", [None, 1.5])
def test_a_burst_is_prefilled_in_a_few_large_steps(itl_slo: float | None) -> None:
    """32 prompts that come within 100 ms: three steps, and no stream in its stride is kept waiting."""
    simulation = Simulation(itl_slo=itl_slo)
    for i in range(32):
        simulation.arrive(f"r{i}", at_s=0.003 * i, prompt=128, output=128)

    simulation.run()

    waits = simulation.gaps_s()
    assert p99(waits) <= 1.5 * statistics.median(waits)
    assert sum(max(p.num_scheduled_tokens.values()) > 1 for p in simulation.plans) == 3
    late = [gap for stream in simulation.streams.values() for gap in stream.gaps_s[SETTLED_TOKENS:]]
    assert max(late) < 1.5 * statistics.median(late)


def test_many_that_wait_outweigh_few_that_run_unless_a_bound_was_asked_for() -> None:
    """Two streams do not hold up ten prompts by default; with itl_slo they do."""

    def longest_wait_s(itl_slo: float | None) -> float:
        simulation = Simulation(itl_slo=itl_slo)
        for i in range(2):
            simulation.arrive(f"stream-{i}", at_s=0, prompt=16, output=400)
        for i in range(10):
            simulation.arrive(f"prompt-{i}", at_s=2, prompt=500, output=2)
        simulation.run()
        return max(simulation.gaps_s("stream"))

    assert longest_wait_s(None) > 1.0
    assert longest_wait_s(3.0) < 0.05


def test_chunks_follow_a_machine_that_gets_slower() -> None:
    """Twice as slow from some moment on: the new usual time is measured amid prompts, chunks stay as long."""
    costs = Costs(slowdown=lambda now_s: 2.0 if now_s > 6 else 1.0)
    simulation = Simulation(itl_slo=2.0, costs=costs)
    for i in range(8):
        simulation.arrive(f"stream-{i}", at_s=0.002 * i, prompt=16, output=3000)
    simulation.arrive("prompt", at_s=3, prompt=20_000, output=1)

    simulation.run(until_s=16)

    chunks = [
        plan.num_scheduled_tokens.get("prompt", 0)
        for plan, stream_s in zip(simulation.plans, simulation.streams["stream-0"].moments_s, strict=False)
        if stream_s > 12
    ]
    assert 3 <= statistics.median(chunks) <= 10
    assert chunks.count(0) >= len(chunks) // 40, "some steps go without a prefill, to measure"


def test_a_hiccup_does_not_change_the_chunks() -> None:
    """One step that takes a second, with a prompt beside: the chunks after it are about those before it."""
    hiccups = iter([False] * 200 + [True])
    costs = Costs(noise=0, slowdown=lambda now_s: 50.0 if next(hiccups, False) else 1.0)
    simulation = decoding_while_prompts_arrive(2.0, costs=costs, every_s=20)

    chunks = [p.num_scheduled_tokens.get("prompt-0", 0) for p in simulation.plans]
    before, after = chunks[190:200], chunks[203:213]
    assert max(simulation.step_times_s[195:205]) > 0.5
    assert max(before) > 0 and min(after) >= max(before) // 3


@pytest.mark.parametrize("itl_slo", [1.001, 1.5, 3.0])
def test_every_prompt_gets_on_however_dear_a_step_is(itl_slo: float) -> None:
    """Even where a single token more breaks the bound, each step but those that measure computes one."""
    costs = Costs(prefill_step_ms=500.0)
    simulation = Simulation(itl_slo=itl_slo, costs=costs)
    simulation.arrive("stream", at_s=0, prompt=4, output=400)
    simulation.arrive("prompt", at_s=1, prompt=40, output=1)

    simulation.run()

    assert simulation.streams["prompt"].moments_s
    assert len(simulation.streams["stream"].moments_s) == 400


def test_more_streams_than_the_budget_has_tokens_starve_nobody() -> None:
    """A budget below the number of streams: what cannot be measured is not waited for."""
    simulation = Simulation(itl_slo=1.5, token_budget=4)
    for i in range(12):
        simulation.arrive(f"r{i}", at_s=0.01 * i, prompt=9, output=30)

    simulation.run()

    assert all(len(stream.moments_s) == 30 for stream in simulation.streams.values())


def test_without_step_times_nothing_is_bounded() -> None:
    """A caller that does not say how long steps take gets whole prompts."""
    scheduler = Scheduler(make_config(token_budget=2048), num_blocks=1000, block_size=16)
    scheduler.add_request(make_request("stream", [1] * 4, max_tokens=50))
    for _ in range(10):
        plan = scheduler.schedule()
        scheduler.update(plan, StepResult(step_id=plan.step_id, sampled_token_ids={"stream": [1]}))
    scheduler.add_request(make_request("prompt", [1] * 1500, max_tokens=2))

    assert scheduler.schedule().num_scheduled_tokens == {"stream": 1, "prompt": 1500}
