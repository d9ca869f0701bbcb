"""The scheduler step by step, with a fake executor."""

from __future__ import annotations

import pytest
from scheduler_fakes import Engine, expected_output, make_config, make_request

from graftlm.contracts.errors import InvalidParameter
from graftlm.contracts.request import FinishReason
from graftlm.contracts.step import StepResult


def prompt(length: int, *, salt: int = 0) -> list[int]:
    return [(i * i + 3 * i + salt) % 7 for i in range(length)]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """A prompt above the token budget takes several steps and gives the same tokens."""
    engine = Engine(make_config(token_budget=10), num_blocks=32, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(35), max_tokens=5))

    plans = [engine.step() for _ in range(4)]
    engine.run()

    assert [plan.num_scheduled_tokens["a"] for plan in plans] == [10, 10, 10, 5]
    assert engine.outputs["a"] == expected_output(prompt(35), 5)
    assert engine.finish_reason("a") == "length"
    engine.assert_no_block_leaked()


def test_running_requests_come_before_waiting_ones_and_keep_their_token() -> None:
    """A prefill that fills the budget leaves each running request behind it one token."""
    engine = Engine(make_config(token_budget=8, policy="priority"), num_blocks=32, block_size=4)
    engine.scheduler.add_request(make_request("decoding", prompt(3), max_tokens=20, priority=5))
    engine.step()
    engine.scheduler.add_request(make_request("urgent", prompt(40, salt=1), max_tokens=1, priority=0))

    first, second = engine.step(), engine.step()

    assert first.num_scheduled_tokens == {"decoding": 1, "urgent": 7}
    assert second.num_scheduled_tokens == {"urgent": 7, "decoding": 1}


def test_equal_prompts_reuse_blocks_and_compute_the_last_token() -> None:
    """A repeated prompt costs only what is behind its last full block, and at least one token."""
    engine = Engine(make_config(), num_blocks=32, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(16), max_tokens=2))
    engine.run()
    engine.scheduler.stats()
    engine.scheduler.add_request(make_request("b", prompt(16), max_tokens=2))

    plan = engine.step()
    engine.run()
    stats = engine.scheduler.stats()

    assert plan.new[0].num_computed_tokens == 12
    assert plan.num_scheduled_tokens == {"b": 4}
    assert engine.outputs["a"] == engine.outputs["b"]
    assert engine.updates["b"][-1].num_cached_tokens == 12
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (16, 12)


def test_output_tokens_are_reused_by_a_longer_conversation() -> None:
    """The next turn of a chat reuses the blocks that the last answer filled."""
    engine = Engine(make_config(), num_blocks=32, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(6), max_tokens=11))
    engine.run()
    engine.scheduler.add_request(make_request("b", prompt(6) + engine.outputs["a"] + [1, 2], max_tokens=1))

    plan = engine.step()

    assert plan.new[0].num_computed_tokens == 16


def test_eight_cold_requests_with_one_prefix_compute_it_once() -> None:
    """A request whose next block is being computed is held back for one step, and then reuses it."""
    engine = Engine(make_config(token_budget=2048), num_blocks=200, block_size=16)
    shared = prompt(1000)
    for i in range(8):
        tail = [(i + j * i + j) % 7 for j in range(31)]
        engine.scheduler.add_request(make_request(f"r{i}", [*shared, *tail, i % 7], max_tokens=3))

    first, second = engine.step(), engine.step()
    engine.run()

    assert list(first.num_scheduled_tokens) == ["r0"]
    assert len(second.num_scheduled_tokens) == 8
    assert all(new.num_computed_tokens >= 992 for new in second.new)
    assert engine.executor.num_computed < 1032 + 7 * 41 + 8 * 3


@pytest.mark.parametrize("token_budget", [5, 24, 64, 2048], ids=lambda budget: f"steps of {budget} tokens")
def test_a_prefix_that_takes_many_steps_is_waited_for_until_its_end(token_budget: int) -> None:
    """Whoever shares it waits through all chunks, also those that end amid a block; each token is computed once."""
    engine = Engine(make_config(token_budget=token_budget), num_blocks=200, block_size=16)
    shared, tails = prompt(320), [[i, 1, 2, 3] for i in range(6)]
    for i, tail in enumerate(tails):
        engine.scheduler.add_request(make_request(f"r{i}", shared + tail, max_tokens=1))

    engine.run()

    assert engine.executor.num_computed == len(shared) + sum(map(len, tails))
    cached = [engine.updates[f"r{i}"][-1].num_cached_tokens for i in range(6)]
    assert cached == [0, *[len(shared)] * 5]
    assert all(engine.outputs[f"r{i}"] == expected_output(shared + tail, 1) for i, tail in enumerate(tails))


def test_held_back_requests_let_others_pass_and_keep_their_place() -> None:
    """Holding one back does not stop those behind it, and it is first again in the next step."""
    engine = Engine(make_config(), num_blocks=64, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(9), max_tokens=4))
    engine.scheduler.add_request(make_request("b", prompt(9), max_tokens=4))
    engine.scheduler.add_request(make_request("c", prompt(9, salt=1), max_tokens=4))

    first, second = engine.step(), engine.step()

    assert list(first.num_scheduled_tokens) == ["a", "c"]
    assert list(second.num_scheduled_tokens) == ["a", "c", "b"]
    assert second.new[0].num_computed_tokens == 8


def test_no_prefix_is_skipped_when_prompt_logprobs_are_wanted() -> None:
    """Each prompt token but the first has its entry, in order, also from chunks and after a cached twin."""
    engine = Engine(make_config(token_budget=5), num_blocks=32, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(17), max_tokens=1))
    engine.run()
    engine.scheduler.add_request(make_request("b", prompt(17), max_tokens=2, prompt_logprobs=0))
    engine.run()

    first, second = engine.updates["b"]
    assert [entry.token_id for entry in first.prompt_logprobs] == prompt(17)[1:]
    assert [entry.logprob for entry in first.prompt_logprobs] == [-float(i) for i in range(16)]
    assert second.prompt_logprobs == []
    assert first.num_cached_tokens == 0


def test_the_last_request_is_preempted_and_continues_where_it_was() -> None:
    """When blocks run out the newest request gives its own; nobody's tokens change."""
    engine = Engine(make_config(prefix_caching=False), num_blocks=6, block_size=4)
    engine.scheduler.add_request(make_request("old", prompt(6), max_tokens=14))
    engine.scheduler.add_request(make_request("new", prompt(6, salt=2), max_tokens=14))

    preempted = []
    while engine.scheduler.has_unfinished:
        preempted += engine.step().preempted

    assert set(preempted) == {"new"}
    assert engine.scheduler.stats().num_preemptions == len(preempted)
    assert engine.outputs["old"] == expected_output(prompt(6), 14)
    assert engine.outputs["new"] == expected_output(prompt(6, salt=2), 14)
    engine.assert_no_block_leaked()


def test_under_priority_the_least_urgent_is_preempted() -> None:
    """The victim is the request with the highest number, however long it has been there."""
    config = make_config(prefix_caching=False, policy="priority")
    engine = Engine(config, num_blocks=6, block_size=4)
    engine.scheduler.add_request(make_request("patient", prompt(6), max_tokens=14, priority=9))
    engine.scheduler.add_request(make_request("urgent", prompt(6, salt=2), max_tokens=14, priority=1))

    preempted = []
    while engine.scheduler.has_unfinished:
        preempted += engine.step().preempted

    assert set(preempted) == {"patient"}
    assert engine.outputs["patient"] == expected_output(prompt(6), 14)


def test_priority_orders_the_waiting() -> None:
    """Lower numbers are served first; equal ones in order of arrival."""
    engine = Engine(make_config(max_num_seqs=1, policy="priority"), num_blocks=32, block_size=4)
    for name, priority in (("c", 2), ("a", 1), ("d", 2), ("b", 1)):
        engine.scheduler.add_request(make_request(name, prompt(3), max_tokens=1, priority=priority))

    order = [next(iter(engine.step().num_scheduled_tokens)) for _ in range(4)]

    assert order == ["a", "b", "c", "d"]


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_abort_at_any_moment_frees_the_request_at_once(steps: int) -> None:
    """An aborted request has an abort update, no block, and is forgotten by the workers with the next plan."""
    engine = Engine(make_config(token_budget=8), num_blocks=16, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(20), max_tokens=20))
    engine.scheduler.add_request(make_request("b", prompt(5, salt=1), max_tokens=6))
    for _ in range(steps):
        engine.step()

    updates = engine.scheduler.abort(["a", "nobody"])
    engine.take(updates)
    engine.step()

    assert [(u.request_id, u.finish_reason) for u in updates] == [("a", FinishReason.ABORT)]
    assert "a" not in engine.executor.known
    engine.run()
    assert engine.outputs["b"] == expected_output(prompt(5, salt=1), 6)
    engine.assert_no_block_leaked()


def test_an_aborted_request_ignores_the_step_in_flight() -> None:
    """What a step brings for a request that was aborted meanwhile is dropped, also if its id is in use again."""
    engine = Engine(make_config(), num_blocks=16, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(5), max_tokens=6))
    plan = engine.scheduler.schedule()
    engine.scheduler.abort(["a"])
    engine.scheduler.add_request(make_request("a", prompt(7, salt=1), max_tokens=2))

    updates = engine.scheduler.update(plan, engine.executor.execute_step(plan))
    engine.run()

    assert updates == []
    assert engine.outputs["a"] == expected_output(prompt(7, salt=1), 2)


def test_an_id_in_use_again_ignores_the_step_in_flight_although_it_has_started() -> None:
    """Also when the newcomer is already part of a later plan, the earlier plan's tokens are not its own."""
    engine = Engine(make_config(), num_blocks=16, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(5), max_tokens=6))
    first = engine.scheduler.schedule()
    engine.scheduler.abort(["a"])
    engine.scheduler.add_request(make_request("a", prompt(7, salt=1), max_tokens=2))
    second = engine.scheduler.schedule()

    late = engine.scheduler.update(first, engine.executor.execute_step(first))
    engine.take(engine.scheduler.update(second, engine.executor.execute_step(second)))
    engine.run()

    assert late == []
    assert engine.outputs["a"] == expected_output(prompt(7, salt=1), 2)


def test_a_prompt_that_can_never_fit_ends_with_an_error() -> None:
    """More tokens than the KV cache has: an error update that names both numbers, and no hang."""
    engine = Engine(make_config(), num_blocks=4, block_size=4)
    engine.scheduler.add_request(make_request("big", prompt(17), max_tokens=1))
    engine.scheduler.add_request(make_request("empty", [], max_tokens=1))
    engine.scheduler.add_request(make_request("foreign", [1, 99], max_tokens=1))
    engine.scheduler.add_request(make_request("fits", prompt(16), max_tokens=5))

    engine.run()

    assert [engine.finish_reason(name) for name in ("big", "empty", "foreign")] == ["error"] * 3
    assert "17" in str(engine.updates["big"][0].error) and "16" in str(engine.updates["big"][0].error)
    assert engine.finish_reason("fits") == "length"
    assert len(engine.outputs["fits"]) == 1


def test_an_id_in_use_is_refused() -> None:
    """Two requests in progress cannot share an id."""
    engine = Engine(make_config(), num_blocks=4, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(3)))

    with pytest.raises(InvalidParameter, match="request_id='a'"):
        engine.scheduler.add_request(make_request("a", prompt(3)))


def test_a_workers_error_ends_only_its_request() -> None:
    """A request that the workers cannot continue ends with their words; the others go on."""
    engine = Engine(make_config(), num_blocks=16, block_size=4)
    engine.scheduler.add_request(make_request("a", prompt(3), max_tokens=3))
    engine.scheduler.add_request(make_request("b", prompt(3, salt=1), max_tokens=3))
    plan = engine.scheduler.schedule()
    result = engine.executor.execute_step(plan)
    del result.sampled_token_ids["a"]
    result.errors["a"] = "the logits are not finite"

    engine.take(engine.scheduler.update(plan, result))
    engine.run()

    assert engine.finish_reason("a") == "error"
    assert engine.updates["a"][0].error == "the logits are not finite"
    assert engine.outputs["b"] == expected_output(prompt(3, salt=1), 3)
    engine.assert_no_block_leaked()


def outcome(request: object, tokens: list[int], **config: object) -> tuple[list[int], str | None, int | None]:
    """Feed `tokens` one by one to a single request and tell how it ends."""
    engine = Engine(make_config(**config), num_blocks=16, block_size=4)  # type: ignore[arg-type]
    engine.scheduler.add_request(request)  # type: ignore[arg-type]
    for token in tokens:
        plan = engine.scheduler.schedule()
        engine.executor.execute_step(plan)
        result = StepResult(step_id=plan.step_id, sampled_token_ids={"a": [token]})
        engine.take(engine.scheduler.update(plan, result))
        if not engine.scheduler.has_unfinished:
            break
    return engine.outputs["a"], engine.finish_reason("a"), engine.updates["a"][-1].stop_reason


def test_how_a_request_ends() -> None:
    """End of sequence, stop ids, max_tokens, the context's end, ignore_eos and min_tokens each do their part."""
    tokens = [1, 2, 3, 4, 5, 6]

    assert outcome(make_request("a", [0], max_tokens=9, eos=(3,)), tokens) == ([1, 2, 3], "stop", None)
    assert outcome(make_request("a", [0], max_tokens=9, stop_token_ids=[2]), tokens) == ([1, 2], "stop", 2)
    assert outcome(make_request("a", [0], max_tokens=4), tokens) == ([1, 2, 3, 4], "length", None)
    assert outcome(make_request("a", [0], max_tokens=None), tokens, max_model_len=4) == (
        [1, 2, 3], "length", None,
    )  # fmt: skip
    assert outcome(make_request("a", [0], max_tokens=5, eos=(3,), ignore_eos=True), tokens) == (
        [1, 2, 3, 4, 5], "length", None,
    )  # fmt: skip
    assert outcome(make_request("a", [0], max_tokens=6, min_tokens=4, eos=(3, 5)), tokens) == (
        [1, 2, 3, 4, 5], "stop", None,
    )  # fmt: skip


def test_statistics_count_each_prompt_token_once() -> None:
    """Prompt tokens are counted cached or computed, but not again after a preemption."""
    engine = Engine(make_config(token_budget=16), num_blocks=8, block_size=4)
    prompts = {f"r{i}": prompt(7 + i, salt=i) for i in range(4)}
    for name, token_ids in prompts.items():
        engine.scheduler.add_request(make_request(name, token_ids, max_tokens=12))

    totals = {"prompt": 0, "generation": 0, "preemptions": 0}
    while engine.scheduler.has_unfinished:
        engine.step()
        stats = engine.scheduler.stats()
        totals["prompt"] += stats.num_prompt_tokens
        totals["generation"] += stats.num_generation_tokens
        totals["preemptions"] += stats.num_preemptions
        assert 0 <= stats.kv_cache_usage <= 1

    assert totals["preemptions"] > 0
    assert totals["prompt"] == sum(map(len, prompts.values()))
    assert totals["generation"] == 4 * 12
