"""AsyncLLM over a scripted engine: validation, seeds, merging, stop strings, aborts, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from checkpoints import EOS_ID, VOCAB_SIZE, write_tokenizer
from text_fakes import Script, ScriptedClient

from graftlm.config import EngineConfig
from graftlm.contracts.checkpoint import CheckpointFacts
from graftlm.contracts.errors import (
    EngineClosing,
    EngineDead,
    GraftlmError,
    InvalidParameter,
    RequestError,
    RequestTooLong,
)
from graftlm.contracts.request import FinishReason
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.stats import RequestStats, StepStats
from graftlm.frontend.async_llm import AsyncLLM, TextUpdate
from graftlm.frontend.stat_loggers import StatsHub
from graftlm.frontend.text_assets import TextAssets
from graftlm.frontend.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    found = load_tokenizer(EngineConfig(), CheckpointFacts(path="", format="", hf_config={}, tokenizer=str(path)))
    assert found is not None
    return found


def build(
    client: ScriptedClient, tokenizer: Tokenizer | None, *, seed: int = 0, finished: list[Any] | None = None
) -> AsyncLLM:
    config = EngineConfig()
    config.model.hf_config = {"vocab_size": VOCAB_SIZE}
    config.model.seed = seed
    stats = StatsHub()
    if finished is not None:
        stats.add_listener(lambda step, ended: finished.extend(ended))
    return AsyncLLM(
        config, client, assets=TextAssets(tokenizer=tokenizer, eos_token_ids=(EOS_ID,)), stats=stats
    )  # fmt: skip


async def collect(llm: AsyncLLM, prompt: str | list[int], params: SamplingParams, **more: Any) -> list[TextUpdate]:
    more.setdefault("request_id", "r")
    async with aclosing(llm.generate(prompt, params, **more)) as updates:
        return [update async for update in updates]


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(work())


def test_text_ids_and_end_arrive_in_order(tokenizer: Tokenizer) -> None:
    """The deltas joined are the text and the ids; the last update tells the end; usage is told with each."""
    client = ScriptedClient(Script(tokenizer.encode("héllo")))
    updates = run(lambda: collect(build(client, tokenizer), "the", SamplingParams(max_tokens=9)))

    assert "".join(u.text for u in updates) == "héllo"
    assert [i for u in updates for i in u.token_ids] == tokenizer.encode("héllo")
    assert [u.finish_reason for u in updates] == [None] * (len(updates) - 1) + ["length"]
    assert updates[0].num_prompt_tokens == len(tokenizer.encode("the")) and updates[0].num_cached_tokens == 3
    assert client.left == [] and client.requests[0].eos_token_ids == [EOS_ID]


def test_the_end_token_gives_no_text_but_counts(tokenizer: Tokenizer) -> None:
    """A stop token that is an ordinary word is cut from the text, and shown where the caller wants it."""
    ids = tokenizer.encode("ab!")

    def texts(**options: Any) -> list[str]:
        client = ScriptedClient(Script(ids, FinishReason.STOP))
        params = SamplingParams(stop_token_ids=[ids[-1]], **options)
        updates = run(lambda: collect(build(client, tokenizer), "x", params))
        assert sum(len(u.token_ids) for u in updates) == 3
        return ["".join(u.text for u in updates)]

    assert texts() == ["ab"]
    assert texts(include_stop_str_in_output=True) == ["ab!"]


def test_a_stop_string_ends_and_aborts(tokenizer: Tokenizer) -> None:
    """The output is cut before the stop string, the engine's request is left, later tokens never come."""
    client = ScriptedClient(Script(tokenizer.encode("one STOP two")))
    finished: list[RequestStats] = []
    llm = build(client, tokenizer, finished=finished)
    updates = run(lambda: collect(llm, "x", SamplingParams(stop=["STOP", "zzz"])))

    assert "".join(u.text for u in updates) == "one "
    assert (updates[-1].finish_reason, updates[-1].stop_reason) == ("stop", "STOP")
    assert client.left == ["r"]
    assert finished[0].finish_reason == "stop" and finished[0].num_output_tokens == len("one STOP")


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    """The text of the first min_tokens tokens is not searched."""
    client = ScriptedClient(Script(tokenizer.encode("ab.cd.ef")))
    updates = run(lambda: collect(build(client, tokenizer), "x", SamplingParams(stop=["."], min_tokens=4)))

    assert "".join(u.text for u in updates) == "ab.cd"


def test_held_back_text_comes_when_the_output_ends_otherwise(tokenizer: Tokenizer) -> None:
    """Half a stop string at the end is ordinary text."""
    client = ScriptedClient(Script(tokenizer.encode("so ST")))
    updates = run(lambda: collect(build(client, tokenizer), "x", SamplingParams(stop=["STOP"])))

    assert "".join(u.text for u in updates) == "so ST" and updates[-1].finish_reason == "length"


def test_choices_are_merged_and_sample_with_neighbouring_seeds(tokenizer: Tokenizer) -> None:
    """n choices become n requests with seed, seed + 1, …; each ends for itself, one by a stop string."""
    texts = ["aaa", "b.b", "cccccc"]
    client = ScriptedClient(lambda request: Script(tokenizer.encode(texts[int(request.request_id[-1])])))
    finished: list[RequestStats] = []
    llm = build(client, tokenizer, finished=finished)
    params = SamplingParams(n=3, seed=2**64 - 1, stop=["."], prompt_logprobs=1)
    updates = run(lambda: collect(llm, "x", params))

    assert ["".join(u.text for u in updates if u.index == i) for i in range(3)] == ["aaa", "b", "cccccc"]
    assert [r.params.seed for r in client.requests] == [2**64 - 1, 0, 1]
    assert [r.params.prompt_logprobs for r in client.requests] == [1, None, None]
    assert len([u for u in updates if u.finish_reason]) == 3
    assert client.left == ["r#1"]
    assert (finished[0].n, finished[0].num_output_tokens, len(finished)) == (3, 11, 1)


def test_requests_without_a_seed_differ_and_repeat_after_a_restart(tokenizer: Tokenizer) -> None:
    """Asking twice gives two seeds; the same calls to a new engine with the same --seed give the same ones."""

    def seeds(seed: int) -> list[int | None]:
        client = ScriptedClient(Script([1]))
        llm = build(client, tokenizer, seed=seed)
        for name in ("a", "b"):
            run(lambda name=name: collect(llm, "x", SamplingParams(), request_id=name))
        return [request.params.seed for request in client.requests]

    assert len(set(seeds(0))) == 2
    assert seeds(0) == seeds(0) != seeds(1)


def test_max_tokens_is_resolved_to_the_end_of_the_context(tokenizer: Tokenizer) -> None:
    """Without a wish the output may fill the context of 64 tokens."""
    client = ScriptedClient(Script([1]))
    run(lambda: collect(build(client, tokenizer), [1, 2, 3], SamplingParams(max_tokens=None)))

    assert client.requests[0].params.max_tokens == 61


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([1] * 64, {}, RequestTooLong, r"64 tokens.*64 tokens"),
        ([1] * 60, {"max_tokens": 5}, RequestTooLong, r"60 tokens and max_tokens=5.*64"),
        ([], {}, InvalidParameter, "at least one token"),
        ([1, VOCAB_SIZE], {}, InvalidParameter, rf"{VOCAB_SIZE}.*0 to {VOCAB_SIZE - 1}"),
        ([-1], {}, InvalidParameter, "prompt=-1"),
        ([1], {"logit_bias": {9999: 1.0}}, InvalidParameter, "logit_bias=9999"),
        ([1], {"stop_token_ids": [9999]}, InvalidParameter, "stop_token_ids=9999"),
        ([1] * 60, {"max_tokens": None, "min_tokens": 9}, InvalidParameter, "room for 4"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_engine_hears_of_it(
    tokenizer: Tokenizer, prompt: list[int], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Each refusal names the value and the limit."""
    client = ScriptedClient(Script([1]))
    with pytest.raises(error, match=says):
        run(lambda: collect(build(client, tokenizer), prompt, SamplingParams(**options)))

    assert client.requests == []


def test_a_model_without_a_tokenizer_serves_ids_only() -> None:
    """Ids in, ids out; text and stop strings are refused with the cure."""
    client = ScriptedClient(Script([5, 6]))
    llm = build(client, None)
    updates = run(lambda: collect(llm, [1], SamplingParams()))

    assert [u.token_ids for u in updates] == [[5], [6]] and all(u.text == "" for u in updates)
    with pytest.raises(RequestError, match="--tokenizer"):
        run(lambda: collect(llm, "text", SamplingParams()))
    with pytest.raises(InvalidParameter, match="stop_token_ids"):
        run(lambda: collect(llm, [1], SamplingParams(stop=["x"])))


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_the_stream_leaves_every_request(tokenizer: Tokenizer, n: int) -> None:
    """A caller who goes away frees all choices, and counts as aborted."""
    client = ScriptedClient(Script(tokenizer.encode("abc"), finish_reason=None))
    finished: list[RequestStats] = []
    llm = build(client, tokenizer, finished=finished)

    async def leave() -> None:
        async with aclosing(llm.generate("x", SamplingParams(n=n), request_id="r")) as updates:
            async for _ in updates:
                assert llm.num_requests == 1
                break
        await asyncio.sleep(0.01)

    run(leave)
    assert len(client.left) == n and llm.num_requests == 0
    assert [f.finish_reason for f in finished] == ["abort"]


def test_abort_ends_the_stream_with_an_update(tokenizer: Tokenizer) -> None:
    """Aborting by request id reaches every choice; each ends with finish_reason abort."""
    client = ScriptedClient(Script(tokenizer.encode("abc"), finish_reason=None))
    llm = build(client, tokenizer)

    async def abort() -> list[TextUpdate]:
        collecting = asyncio.create_task(collect(llm, "x", SamplingParams(n=2)))
        while len(client.requests) < 2:
            await asyncio.sleep(0)
        await llm.abort("r")
        return await collecting

    ends = [u.finish_reason for u in run(abort) if u.finish_reason]
    assert ends == ["abort", "abort"] and client.left == []


@pytest.mark.parametrize("n", [1, 2])
def test_an_engine_that_dies_is_told_to_everybody(tokenizer: Tokenizer, n: int) -> None:
    """Running streams raise EngineDead with the cause, and new requests are refused with it."""
    client = ScriptedClient(Script(tokenizer.encode("abcdef")))
    finished: list[RequestStats] = []
    llm = build(client, tokenizer, finished=finished)

    async def die() -> None:
        async for _ in llm.generate("x", SamplingParams(n=n), request_id="r"):
            client.dead = "worker 0 was killed"

    with pytest.raises(EngineDead, match="worker 0"):
        run(die)
    with pytest.raises(EngineDead, match="worker 0"):
        run(lambda: collect(llm, "x", SamplingParams()))
    assert llm.unhealthy() == "worker 0 was killed"
    assert finished[0].finish_reason == "error"


def test_a_request_that_the_engine_fails_raises_its_words(tokenizer: Tokenizer) -> None:
    """finish_reason error becomes an exception, since no answer exists."""
    client = ScriptedClient(Script([1], FinishReason.ERROR, error="out of blocks"))

    with pytest.raises(GraftlmError, match="out of blocks"):
        run(lambda: collect(build(client, tokenizer), "x", SamplingParams()))


def test_a_closing_server_takes_no_requests(tokenizer: Tokenizer) -> None:
    """After shutdown began every call is refused, and health says why."""
    llm = build(ScriptedClient(Script([1])), tokenizer)

    async def close_twice() -> None:
        await llm.shutdown()
        await llm.shutdown()
        await collect(llm, "x", SamplingParams())

    with pytest.raises(EngineClosing):
        run(close_twice)
    assert "shutting down" in str(llm.unhealthy())


def test_one_request_id_cannot_run_twice(tokenizer: Tokenizer) -> None:
    """The second call is refused while the first runs."""
    llm = build(ScriptedClient(Script([1, 2], finish_reason=None)), tokenizer)

    async def twice() -> None:
        async with aclosing(llm.generate("x", SamplingParams(), request_id="r")) as first:
            await anext(first)
            await collect(llm, "x", SamplingParams())

    with pytest.raises(InvalidParameter, match="in progress"):
        run(twice)


def test_steps_and_requests_reach_the_listener(tokenizer: Tokenizer) -> None:
    """A listener hears each step and each request with times that make sense."""
    client = ScriptedClient(Script(tokenizer.encode("abcd")))
    llm = build(client, tokenizer)
    heard: list[Any] = []
    llm.add_stats_listener(lambda step, finished: heard.append(step or finished[0]))
    client.step(StepStats(num_running=1))
    run(lambda: collect(llm, "x", SamplingParams(max_tokens=4)))

    step, request = heard
    assert step.num_running == 1
    assert (request.request_id, request.num_output_tokens, request.num_cached_tokens) == ("r", 4, 3)
    assert len(request.inter_token_latencies_s) == 3
    assert 0 < request.time_to_first_token_s <= request.e2e_latency_s


def test_a_conversation_becomes_ids_without_a_second_bos(tiny_llama: Path) -> None:
    """The assets of a checkpoint directory render, encode and know the end of sequence."""
    from graftlm.frontend.text_assets import load_text_assets

    config = EngineConfig()
    config.model.path = str(tiny_llama)
    assets = load_text_assets(config)
    ids = assets.encode_chat([{"role": "user", "content": "hi"}])

    assert assets.tokenizer is not None
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert assets.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert assets.eos_token_ids == (EOS_ID,)
