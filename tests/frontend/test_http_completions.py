"""/v1/completions through the openai client and bare HTTP, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import checkpoints
import httpx
import openai
import pytest
from http_harness import MAX_MODEL_LEN, TEXT, HttpServer, TalkingClient, byte_tokenizer, read_events


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tokenizer=byte_tokenizer(tmp_path_factory.mktemp("tok"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> openai.OpenAI:
    return server.openai()


def params_of_last(server: HttpServer) -> Any:
    return server.client.requests[-1].params


def test_the_openai_client_gets_a_completion_in_its_shape(server: HttpServer, client: openai.OpenAI) -> None:
    """Text, finish reason, usage with cached tokens, and OpenAI's default of 16 tokens."""
    answer = client.completions.create(model="talker", prompt="abc")

    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "talker"
    assert answer.choices[0].text == (TEXT * 2).encode()[:16].decode("utf-8", "ignore")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip
    assert params_of_last(server).max_tokens == 16
    assert params_of_last(server).temperature == 1.0


def test_every_sampling_field_reaches_the_engine(server: HttpServer, client: openai.OpenAI) -> None:
    """What the openai client and its extra_body send arrives as SamplingParams."""
    client.completions.create(
        model="also/talker", prompt="abc", max_tokens=5, temperature=0.5, top_p=0.9, seed=7, presence_penalty=0.1,
        frequency_penalty=-0.2, logit_bias={"65": 3}, user="me",
        extra_body={
            "top_k": 4, "min_p": 0.01, "min_tokens": 2, "repetition_penalty": 1.1, "ignore_eos": True,
            "stop_token_ids": [250], "include_stop_str_in_output": True, "priority": 3,
        },
    )  # fmt: skip

    params, request = params_of_last(server), server.client.requests[-1]
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (5, 0.5, 0.9, 4)
    assert (params.min_p, params.min_tokens, params.seed) == (0.01, 2, 7)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.1, -0.2, 1.1)
    assert (params.logit_bias, params.stop_token_ids, params.ignore_eos) == ({65: 3.0}, [250], True)
    assert (params.include_stop_str_in_output, request.priority) == (True, 3)


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    """Chunks add up to the text, half characters are never sent, usage comes last when asked for."""
    stream = client.completions.create(
        model="talker", prompt="abc", max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == (TEXT * 2).encode()[:20].decode("utf-8", "ignore")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_ends_with_done_and_has_no_usage_unless_asked(server: HttpServer) -> None:
    """The wire format: one data line for each chunk, [DONE] last."""
    response = server.post("/v1/completions", prompt="abc", max_tokens=3, stream=True)
    events = read_events(response)

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("cmpl-")
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hel"
    assert all("usage" not in chunk for chunk in chunks)


def test_prompts_may_be_text_texts_ids_or_lists_of_ids(server: HttpServer) -> None:
    """Four shapes; choices are numbered through all prompts and their n outputs."""
    for prompt, count in (("abc", 1), (["a", "b"], 2), ([65, 66], 1), ([[65], [66, 67]], 2)):
        answer = server.post("/v1/completions", prompt=prompt, n=2, max_tokens=2).json()

        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
        assert all(choice["text"] == "He" for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == 4 * count


def test_a_stream_of_several_prompts_keeps_choices_apart(server: HttpServer) -> None:
    """Each choice of a stream has its own text and its own end."""
    response = server.post("/v1/completions", prompt=["a", "b"], n=2, max_tokens=3, stream=True)
    choices = [json.loads(event)["choices"][0] for event in read_events(response)[:-1]]

    texts = {index: "".join(c["text"] for c in choices if c["index"] == index) for index in range(4)}
    assert texts == dict.fromkeys(range(4), "Hel")
    assert sorted(c["index"] for c in choices if c["finish_reason"]) == [0, 1, 2, 3]


def test_a_stop_string_ends_the_output_and_the_engines_work(server: HttpServer) -> None:
    """A string or a list; the text ends before it, and the engine is told to stop."""
    for stop in ("wör", ["never", "wör"]):
        before = len(server.client.left)
        answer = server.post("/v1/completions", prompt="abc", max_tokens=100, stop=stop).json()

        assert answer["choices"][0]["text"] == "Hello, "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["stop_reason"] == "wör"
        assert len(server.client.left) == before + 1


def test_logprobs_are_parallel_lists_with_offsets_into_the_text(client: openai.OpenAI) -> None:
    """The chosen token is always among the top ones, offsets count characters."""
    choice = client.completions.create(model="talker", prompt="abc", max_tokens=11, logprobs=1).choices[0]

    assert choice.text == "Hello, wör"
    assert choice.logprobs.tokens[:3] == ["H", "e", "l"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9]
    assert choice.logprobs.token_logprobs == [-0.5] * 11
    assert choice.logprobs.top_logprobs[0] == {"I": -0.1, "H": -0.5}


def test_logprobs_are_the_same_in_a_stream(server: HttpServer) -> None:
    """The pieces of a stream put together are the whole answer's lists."""
    wish: dict[str, Any] = {"prompt": "abc", "max_tokens": 12, "logprobs": 2, "echo": True, "n": 2}
    whole = server.post("/v1/completions", **wish).json()["choices"]
    events = read_events(server.post("/v1/completions", **wish, stream=True))[:-1]
    pieces = [json.loads(event)["choices"][0] for event in events]

    for choice in whole:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [v for p in own if p["logprobs"] for v in p["logprobs"][name]] == values


def test_echo_begins_with_the_prompt_and_its_logprobs(server: HttpServer) -> None:
    """The first prompt token has no log-probability; offsets go on through the output."""
    answer = server.post("/v1/completions", prompt="ab", echo=True, max_tokens=2, logprobs=0).json()
    choice = answer["choices"][0]

    assert choice["text"] == "abHe"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "H", "e"],
        "text_offset": [0, 1, 2, 3],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"b": -0.5}, {"H": -0.5}, {"e": -0.5}],
    }
    assert (
        server.post("/v1/completions", prompt=[0, 0], echo=True, max_tokens=1).json()["choices"][0]["text"] == "!!H"
    )


def test_echo_with_no_tokens_scores_a_text(server: HttpServer) -> None:
    """max_tokens=0 with echo is how evaluation tools ask for the log-probabilities of a text."""
    answer = server.post("/v1/completions", prompt="abc", echo=True, max_tokens=0, logprobs=1).json()

    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    refused = server.post("/v1/completions", prompt="abc", max_tokens=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_token_ids_are_returned_on_request(server: HttpServer) -> None:
    """Prompt and output ids, whole and streamed; not there unless asked for."""
    wish = {"prompt": [65, 66], "max_tokens": 2, "return_token_ids": True}
    choice = server.post("/v1/completions", **wish).json()["choices"][0]
    events = read_events(server.post("/v1/completions", **wish, stream=True))[:-1]
    pieces = [json.loads(event)["choices"][0] for event in events]

    assert choice["prompt_token_ids"] == [65, 66]
    assert len(choice["token_ids"]) == 2
    assert pieces[0]["prompt_token_ids"] == [65, 66]
    assert "prompt_token_ids" not in pieces[1]
    assert [i for piece in pieces for i in piece["token_ids"]] == choice["token_ids"]
    assert "token_ids" not in server.post("/v1/completions", prompt="a", max_tokens=1).json()["choices"][0]


@pytest.mark.parametrize(
    ("wish", "param", "words"),
    [
        ({"best_of": 3}, "best_of", "not yet supported"),
        ({"suffix": "end"}, "suffix", "not yet supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "max_tokens=4"),
        ({"prompt": []}, "prompt", "may not be empty"),
        ({"prompt": ["a", 1]}, "prompt", "list of strings"),
        ({"prompt": [True]}, "prompt", "list of token ids"),
        ({"prompt": [1, -1]}, "prompt", "token id is 0 to"),
        ({"prompt": [checkpoints.VOCAB_SIZE]}, "prompt", str(checkpoints.VOCAB_SIZE - 1)),
        ({"prompt": [[1]] * 20, "n": 128}, "prompt", "2560"),
        ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": "half \ud800"}, "prompt", "surrogate"),
        ({"stop": ""}, "stop", "empty string"),
        ({"stop": 3}, "stop", "a string or a list of strings"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "pattern"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "100"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"n": 1.5}, "n", "1.5"),
        ({"n": True}, "n", "true"),
        ({"logprobs": 21}, "logprobs", "20"),
    ],
)
def test_what_cannot_be_served_is_a_400_that_names_the_field(
    server: HttpServer, wish: dict[str, Any], param: str, words: str
) -> None:
    """Each refusal names the field and says what would be possible."""
    body = json.dumps({"prompt": "abc", **wish})
    response = httpx.post(
        f"{server.url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_prompt_beyond_the_context_names_both_numbers(server: HttpServer, client: openai.OpenAI) -> None:
    """Also in a stream: nothing was sent yet, so the status is right."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="talker", prompt="x" * 300, stream=True)

    assert "300 tokens" in str(refused.value)
    assert str(MAX_MODEL_LEN) in str(refused.value)
    assert refused.value.code == "context_length_exceeded"


def test_what_clients_send_without_effect_is_accepted(server: HttpServer) -> None:
    """Nulls are as if not sent, and best_of may equal n."""
    response = server.post(
        "/v1/completions", prompt="a", max_tokens=1, n=2, best_of=2, suffix=None, stop=None, logit_bias=None,
        user="u", metadata={"a": "b"}, store=False, temperature=None,
    )  # fmt: skip

    assert response.status_code == 200


def test_a_model_without_a_tokenizer_serves_ids() -> None:
    """Ids in, ids out; text is a 400 with the cure."""
    with HttpServer(TalkingClient(), tokenizer=None, template=None) as server:
        answer = server.post("/v1/completions", prompt=[1, 2], max_tokens=2, return_token_ids=True, logprobs=0)
        refused = server.post("/v1/completions", prompt="text")

        assert len(answer.json()["choices"][0]["token_ids"]) == 2
        assert answer.json()["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")
        assert refused.status_code == 400
        assert "no tokenizer" in refused.json()["error"]["message"]
        assert server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}]).status_code == 400
