"""The `openai` package and curl against a real server, unchanged: only the base URL differs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any

import openai
import pytest
from live import LiveServer

MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the hat, the cat"}]


@pytest.fixture(scope="module")
def client(tiny_server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny_server.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    """The only model, as the client finds it."""
    models = list(client.models.list())
    assert len(models) == 1
    assert client.models.retrieve(models[0].id) == models[0]
    return models[0].id


def test_chat_completion(client: openai.OpenAI, model: str) -> None:
    """Two answers with log-probabilities, and usage that adds up."""
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, n=2, max_completion_tokens=12, logprobs=True, top_logprobs=3, seed=5,
        extra_body={"ignore_eos": True},
    )  # fmt: skip

    assert answer.object == "chat.completion"
    assert answer.model == model
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert choice.message.role == "assistant"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 12
        for entry in choice.logprobs.content:
            assert len(entry.top_logprobs) == 3
            assert entry.logprob <= 0
            assert entry.bytes is not None
    assert answer.choices[0].message.content != answer.choices[1].message.content
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens == 24
    assert usage.total_tokens == usage.prompt_tokens + 24


def test_chat_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI, model: str) -> None:
    """The deltas put together are what the same call says at once; the usage comes last, once."""
    wishes: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 20, "seed": 7, "temperature": 1.1}
    whole = client.chat.completions.create(**wishes)
    chunks = list(client.chat.completions.create(**wishes, stream=True, stream_options={"include_usage": True}))

    told = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in told) == whole.choices[0].message.content
    assert told[0].delta.role == "assistant"
    assert [c.finish_reason for c in told if c.finish_reason] == [whole.choices[0].finish_reason]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_completion(client: openai.OpenAI, model: str) -> None:
    """Several prompts, texts and ids, each with its own choices; echo begins with the prompt."""
    answer = client.completions.create(
        model=model, prompt=["the cat", "he hid"], n=2, max_tokens=5, logprobs=2, echo=True
    )
    of_ids = client.completions.create(model=model, prompt=[72, 73, 74], max_tokens=3, temperature=0)

    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith(("the cat", "he hid")[choice.index // 2]) for choice in answer.choices] == [
        True
    ] * 4
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs)
    assert logprobs.token_logprobs[0] is None
    assert of_ids.usage is not None
    assert (of_ids.usage.prompt_tokens, of_ids.usage.completion_tokens) == (3, 3)


def test_stop_strings_end_and_are_left_out(client: openai.OpenAI, model: str) -> None:
    """A piece of what would be said ends it there, streamed or not."""
    wishes: dict[str, Any] = {"model": model, "prompt": "the", "max_tokens": 40, "seed": 3}
    text = client.completions.create(**wishes).choices[0].text
    stop = text[10:12]
    stopped = client.completions.create(**wishes, stop=[stop, "never said"])
    chunks = list(client.completions.create(**wishes, stop=stop, stream=True))

    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == stopped.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_errors_are_the_client_s_own(client: openai.OpenAI, model: str) -> None:
    """Each status becomes the exception that callers catch, with message, param and code."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=model, prompt=[1] * 600)
    with pytest.raises(openai.BadRequestError) as not_yet:
        client.chat.completions.create(model=model, messages=MESSAGES, response_format={"type": "json_object"})

    assert "gpt-9" in unknown.value.message
    assert "600" in too_long.value.message
    assert "512" in too_long.value.message
    assert not_yet.value.param == "response_format"
    assert "not yet" in not_yet.value.message


def test_async_client_streams_side_by_side(tiny_server: LiveServer, model: str) -> None:
    """Sixteen streams at once say what they say one by one."""

    async def main() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{tiny_server.base_url}/v1", api_key="none") as client:

            async def ask(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=model, messages=MESSAGES, max_tokens=16, seed=seed, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            together = await asyncio.gather(*(ask(seed) for seed in range(16)))
            alone = [await ask(seed) for seed in range(16)]
            answer = await client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, seed=0)
            assert answer.choices[0].message.content == alone[0]
        return together, alone

    together, alone = asyncio.run(main())
    assert together == alone
    assert len(set(alone)) == 16


def test_leaving_a_stream_early_is_possible(client: openai.OpenAI, model: str, tiny_server: LiveServer) -> None:
    """As `break` in a loop over a stream; the next call is served."""
    with client.completions.create(model=model, prompt="a", max_tokens=400, stream=True) as stream:
        next(iter(stream))

    assert client.completions.create(model=model, prompt="a", max_tokens=2).choices[0].finish_reason == "length"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(tiny_server: LiveServer) -> None:
    """The README's kind of call, whole and streamed, and the guards' answers as they are."""
    url = f"{tiny_server.base_url}/v1/chat/completions"
    body = {"model": tiny_server.model, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    whole = json.loads(curl(url, "-H", "Content-Type: application/json", "-d", json.dumps(body)))
    lines = curl(
        url, "-N", "-H", "Content-Type: application/json", "-d", json.dumps({**body, "stream": True})
    ).splitlines()
    wrong = curl(url, "-d", json.dumps(body), "-w", "%{http_code}")

    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert lines[-2:] == ["data: [DONE]", ""]
    content = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    assert content == whole["choices"][0]["message"]["content"]
    assert wrong.endswith("415")
    assert "application/json" in wrong


def curl(url: str, *words: str) -> str:
    return subprocess.run(
        ["curl", "-sS", url, *words], capture_output=True, text=True, check=True, timeout=120
    ).stdout
