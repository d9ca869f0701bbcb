"""/v1/chat/completions, /tokenize, /detokenize and /v1/models, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from http_harness import MAX_MODEL_LEN, HttpServer, byte_tokenizer, read_events

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tokenizer=byte_tokenizer(tmp_path_factory.mktemp("tok"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> openai.OpenAI:
    return server.openai()


def prompt_of_last(server: HttpServer) -> str:
    assert server.assets.tokenizer is not None
    ids = server.client.requests[-1].prompt_token_ids
    return server.assets.tokenizer.decode(ids, skip_special_tokens=False)


def test_the_openai_client_gets_an_answer_in_its_shape(client: openai.OpenAI) -> None:
    """Role, text, finish reason and usage."""
    answer = client.chat.completions.create(model="talker", messages=HI, max_completion_tokens=5)

    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", "Hello")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_max_tokens_goes_to_the_contexts_end_by_default(server: HttpServer, client: openai.OpenAI) -> None:
    """Unlike completions, chat has no default of 16."""
    answer = client.chat.completions.create(model="talker", messages=HI)

    assert answer.usage.total_tokens == MAX_MODEL_LEN


def test_a_stream_begins_with_the_role_and_adds_up(client: openai.OpenAI) -> None:
    """The role once for each choice, text in pieces, finish reason last, then the usage."""
    stream = client.chat.completions.create(
        model="talker", messages=HI, max_tokens=11, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    for index in (0, 1):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        assert "".join(choice.delta.content or "" for choice in own) == "Hello, wör"
        assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 22


def test_messages_reach_the_template_whatever_their_shape(server: HttpServer, client: openai.OpenAI) -> None:
    """Text parts are joined; a developer speaks as the system where the template knows no developer."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client.chat.completions.create(
        model="talker", max_tokens=1,
        messages=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": parts, "name": "me"},
            {"role": "assistant", "content": "c", "refusal": None},
            {"role": "tool", "content": "d", "tool_call_id": "1"},
        ],
    )  # fmt: skip

    assert prompt_of_last(server) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>tool\nd<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_last_message_can_be_continued(server: HttpServer) -> None:
    """continue_final_message leaves it open; it excludes a new opening."""
    wish: dict[str, Any] = {
        "messages": [*HI, {"role": "assistant", "content": "Once upon "}], "max_tokens": 1,
        "continue_final_message": True,
    }  # fmt: skip
    answer = server.post("/v1/chat/completions", **wish)
    prompt = prompt_of_last(server)
    refused = server.post("/v1/chat/completions", **wish, add_generation_prompt=True)
    without = server.post("/v1/chat/completions", messages=HI, max_tokens=1, add_generation_prompt=False)

    assert answer.status_code == 200
    assert prompt.endswith("<|im_start|>assistant\nOnce upon")
    assert refused.status_code == 400
    assert without.status_code == 200
    assert prompt_of_last(server).endswith("Hi<|im_end|>\n")


def test_logprobs_have_chats_own_shape(server: HttpServer, client: openai.OpenAI) -> None:
    """Entries with bytes, and the best tokens only when they are asked for."""
    answer = client.chat.completions.create(
        model="talker", messages=HI, max_tokens=10, logprobs=True, top_logprobs=2
    )
    plain = client.chat.completions.create(model="talker", messages=HI, max_tokens=1, logprobs=True)
    events = read_events(
        server.post("/v1/chat/completions", messages=HI, max_tokens=10, logprobs=True, top_logprobs=2, stream=True)
    )[:-1]

    entries = answer.choices[0].logprobs.content
    assert (entries[0].token, entries[0].logprob, entries[0].bytes) == ("H", -0.5, [72])
    assert [(top.token, top.logprob) for top in entries[0].top_logprobs] == [("I", -0.1), ("H", -0.5)]
    assert entries[8].bytes == [0xC3]
    assert plain.choices[0].logprobs.content[0].top_logprobs == []
    streamed = [
        e for event in events for e in (json.loads(event)["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == [entry.model_dump() for entry in entries]


def test_token_ids_are_returned_on_request(server: HttpServer) -> None:
    """The prompt's ids once, the output's with each piece."""
    wish = {"messages": HI, "max_tokens": 3, "return_token_ids": True}
    answer = server.post("/v1/chat/completions", **wish).json()
    chunks = [json.loads(e) for e in read_events(server.post("/v1/chat/completions", **wish, stream=True))[:-1]]

    assert answer["prompt_token_ids"] == server.client.requests[-1].prompt_token_ids
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == answer["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("wish", "param", "words"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not yet supported"),
        ({"tool_choice": "required"}, "tool_choice", "not yet supported"),
        ({"functions": [{"name": "f"}]}, "functions", "not yet supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not yet supported"),
        ({"modalities": ["audio"]}, "modalities", "not yet supported"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens", "max_tokens=2"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "needs text"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string or a list"),
        ({"messages": [*HI, {"role": "user", "content": "x", "nmae": "y"}]}, "messages[1].nmae", "'name'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content", "'image_url' is not yet supported",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "server's own"),
        ({"best_of": 2}, "best_of", "unknown field"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_a_400_that_names_the_field(
    server: HttpServer, wish: dict[str, Any], param: str, words: str
) -> None:
    """Tools, formats other than text, and messages that are none."""
    response = server.post("/v1/chat/completions", **{"messages": HI, "max_tokens": 1, **wish})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


def test_harmless_fields_of_clients_are_accepted(server: HttpServer) -> None:
    """Plain text formats, empty tool lists, hints and labels change nothing."""
    response = server.post(
        "/v1/chat/completions", messages=HI, max_tokens=1, response_format={"type": "text"}, tools=[],
        tool_choice="auto", parallel_tool_calls=True, store=True, metadata={"k": "v"}, user="u",
        service_tier="auto", prediction={"type": "content", "content": "x"}, modalities=["text"],
    )  # fmt: skip

    assert response.status_code == 200


def test_tokenize_and_detokenize_are_each_others_inverse(server: HttpServer) -> None:
    """vLLM's shapes: count, max_model_len, tokens; messages go through the chat template."""
    said = server.post("/tokenize", prompt="abc ö", return_token_strs=True).json()
    chat = server.post("/tokenize", messages=HI).json()

    assert said["count"] == len(said["tokens"]) == len(said["token_strs"])
    assert said["max_model_len"] == MAX_MODEL_LEN
    assert said["token_strs"][:3] == ["a", "b", "c"]
    assert server.post("/detokenize", tokens=said["tokens"]).json() == {"prompt": "abc ö"}
    server.post("/v1/chat/completions", messages=HI, max_tokens=1)
    assert chat["tokens"] == server.client.requests[-1].prompt_token_ids
    assert chat["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "wish"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HI}),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}),
        ("/detokenize", {"tokens": [10_000]}),
        ("/detokenize", {"tokens": "abc"}),
    ],
)
def test_tokenize_refuses_what_means_nothing(server: HttpServer, path: str, wish: dict[str, Any]) -> None:
    """Both or neither of prompt and messages, template wishes about a prompt, ids outside the vocabulary."""
    assert server.post(path, **wish).status_code == 400


def test_models_lists_every_served_name(client: openai.OpenAI) -> None:
    """Names with a slash can be retrieved too."""
    models = client.models.list().data

    assert [model.id for model in models] == ["talker", "also/talker"]
    assert models[0].max_model_len == MAX_MODEL_LEN
    assert client.models.retrieve("also/talker").id == "also/talker"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
