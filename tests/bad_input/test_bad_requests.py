"""Requests that cannot be served, on a live server: the right status, OpenAI's shape, and the server serves on."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import VOCAB_SIZE, make_tiny_llama
from server import Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"content-type": "application/json"}
Post = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all of this file, which must have survived all of it."""
    path = make_tiny_llama(tmp_path_factory.mktemp("bad") / "llama")
    with Server([str(path), "--served-model-name=tiny"]) as running:
        yield running
        assert running.process is not None and running.process.poll() is None
        assert "Traceback" not in running.output


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A client; whatever a test did, a good request is answered afterwards."""
    with httpx.Client(base_url=server.base_url, timeout=200) as client:
        yield client
    answer = httpx.post(f"{server.base_url}{COMPLETIONS}", json={"prompt": "hi", "max_tokens": 2}, timeout=200)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Check the status and the shape, and return the error."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and len(error["message"]) < 2100
    return error


WRONG = ["text", -1, 1.5, True, [], {}, [None], {"a": 1}, 10**30, [[[1]]], ["a", 1]]
FIELDS = {
    "model": [1, [], {}], "prompt": [1, True, {}, [None], [[]], ["a", 1], [1.5], [[1], "a"], [-1], [2**31]],
    "n": WRONG, "temperature": ["hot", -1, 101, [], True], "top_p": ["a", 0, -1, 1.1, []],
    "top_k": ["a", -2, 1.5, []],
    "min_p": ["a", -0.1, 2], "seed": ["a", 1.5, 2**64, -(2**63) - 1, []],
    "stop": [1, [1], [""], "", ["a"] * 65, {}],
    "max_tokens": ["a", -1, 1.5, 2**31, [], True], "min_tokens": ["a", -1, 3, []],
    "logprobs": ["a", -1, 21, 1.5, []], "presence_penalty": ["a", -2.1, 2.1], "frequency_penalty": ["a", 3, []],
    "repetition_penalty": ["a", 0, -1], "logit_bias": [1, [], {"a": 1}, {"1": "x"}, {"1": 101}, {"-1": 1}],
    "ignore_eos": ["yes", 1, []], "stop_token_ids": [1, ["a"], [-1], [1.5]], "stream": ["yes", 1, []],
    "stream_options": [1, [], {"a": 1}], "echo": ["yes", 1], "return_token_ids": ["yes", 1],
    "priority": ["a", 1.5], "user": [1, []],
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_value_of_a_field_names_the_field(field: str, http: httpx.Client) -> None:
    """Every field of completions, with values of the wrong type and out of range."""
    for value in FIELDS[field]:
        response = http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2, field: value})

        error = refused(response)
        assert field in error["message"], (value, error)
        assert str(error["param"]).startswith(field), (value, error)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "mood": "good"}]}, "messages[0].mood"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
        ({"prompt": "hello"}, "prompt"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_conversation_names_the_place(body: dict[str, Any], param: str, http: httpx.Client) -> None:
    """Down to the message; what is not supported yet says so."""
    whole = body if not body or "messages" in body else {"messages": [{"role": "user", "content": "a"}], **body}

    assert refused(http.post(CHAT, json=whole))["param"] == param


@pytest.mark.parametrize(
    ("body", "status", "parts"),
    [
        ({"prompt": ""}, 400, ["at least one token"]),
        ({"prompt": [1, VOCAB_SIZE]}, 400, [f"prompt={VOCAB_SIZE}", f"0 to {VOCAB_SIZE - 1}"]),
        ({"prompt": "a" * 3000}, 400, ["3000 tokens", "512 tokens", "--max-model-len"]),
        ({"prompt": [1] * 3000}, 400, ["3000 tokens", "512 tokens"]),
        ({"prompt": "a" * 500, "max_tokens": 100}, 400, ["500 tokens", "max_tokens=100", "512 tokens"]),
        ({"prompt": ["a"] * 5000}, 400, ["5000 prompts"]),
        ({"prompt": "a", "logit_bias": {str(VOCAB_SIZE): 1}}, 400, [f"logit_bias={VOCAB_SIZE}"]),
        ({"prompt": "a", "stop_token_ids": [VOCAB_SIZE]}, 400, [f"stop_token_ids={VOCAB_SIZE}"]),
        ({"prompt": "a", "model": "gpt-9"}, 404, ["'gpt-9'", "['tiny']"]),
        ({"prompt": "a", "temprature": 1}, 400, ["unknown field 'temprature'", "did you mean 'temperature'"]),
        ({"prompt": "a", "response_format": {}}, 400, ["unknown field 'response_format'"]),
        ({"prompt": "a", "best_of": 5}, 400, ["best_of"]),
        ({"prompt": "a", "suffix": "b"}, 400, ["suffix"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_served_is_said_with_the_numbers(
    body: dict[str, Any], status: int, parts: list[str], http: httpx.Client
) -> None:
    """Prompts of nothing, of unknown ids, longer than the context; unknown models and fields."""
    message = refused(http.post(COMPLETIONS, json=body), status)["message"]

    assert all(part in message for part in parts), message
    assert ("did you mean" in message) is ("did you mean" in " ".join(parts)), "nothing far-fetched"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"prompt": ', JSON, 400),
        (b"", JSON, 400),
        (b"[1]", JSON, 400),
        (b'{"prompt": "\xff"}', JSON, 400),
        (b'{"prompt": "\\ud800"}', JSON, 400),
        (b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400),
        (b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", JSON, 400),
        (b'{"prompt": "a", "temperature": Infinity}', JSON, 400),
        (b"\x1f\x8b\x08\x00", {**JSON, "content-encoding": "gzip"}, 400),
        (b"prompt=a", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b'{"prompt": "a"}', {"content-type": "text/plain"}, 415),
        (b'{"prompt": "' + b"a" * 34_000_000 + b'"}', JSON, 413),
    ],
    ids=[
        "cut",
        "empty",
        "list",
        "utf8",
        "surrogate",
        "deep",
        "digits",
        "infinity",
        "gzip",
        "form",
        "plain",
        "34 MB",
    ],
)
def test_a_malformed_body_has_its_status(
    content: bytes, headers: dict[str, str], status: int, http: httpx.Client
) -> None:
    """Broken JSON, JSON that is none of ours, other types, other encodings, too much of it."""
    refused(http.post(COMPLETIONS, content=content, headers=headers), status)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", COMPLETIONS, 405), ("PUT", CHAT, 405), ("DELETE", "/v1/models", 405), ("POST", "/health", 405),
        ("OPTIONS", COMPLETIONS, 405), ("GET", "/v1/nothing", 404), ("POST", "/v1/embeddings", 404),
        ("GET", "/", 404), ("GET", "/v1/models/gpt-9", 404), ("GET", "/%ff%00", 404),
        ("GET", "/plugins/none/here", 404),
        ("GET", "/../etc/passwd", 404),
    ],
)  # fmt: skip
def test_unknown_routes_and_wrong_methods_are_told_apart(
    method: str, path: str, status: int, http: httpx.Client
) -> None:
    """404 for what is not there, 405 for what cannot be done with it."""
    refused(http.request(method, path), status)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [10**9]}),
    ],
)
def test_the_tokenizer_routes_refuse_in_the_same_shape(path: str, body: dict[str, Any], http: httpx.Client) -> None:
    """Nothing, the wrong type, both at once, ids that are none."""
    refused(http.post(path, json=body))


def test_megabytes_of_prompt_are_refused_at_once_and_stop_nobody(http: httpx.Client, server: Server) -> None:
    """They are not even tokenized, which would take seconds and gigabytes: the error counts characters."""
    body = json.dumps({"prompt": "words and " * 1_000_000}).encode()
    answers: list[httpx.Response] = []
    big = threading.Thread(target=lambda: answers.append(http.post(COMPLETIONS, content=body, headers=JSON)))
    big.start()
    with httpx.Client(base_url=server.base_url, timeout=200) as other:
        while big.is_alive():
            assert other.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 1}).status_code == 200

    message = refused(answers[0])["message"]
    assert "10000000 characters" in message and "512 tokens" in message
    conversation = {"messages": [{"role": "user", "content": "words and " * 500_000}]}
    assert "characters" in refused(http.post(CHAT, json=conversation))["message"]


def test_a_text_of_one_megabyte_leaves_the_others_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tokenized after all is tokenized beside the event loop, which answers others meanwhile."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontend"))
    from http_harness import HttpServer, byte_tokenizer

    from graftlm.frontend.tokenizer import Tokenizer

    begun, may_go_on = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def held_up(self: Tokenizer, text: str, **options: Any) -> list[int]:
        begun.set()
        assert may_go_on.wait(60), "nobody else was answered"
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", held_up)
    answers: list[httpx.Response] = []
    text = "ab " * 300_000
    with HttpServer(tokenizer=byte_tokenizer(tmp_path)) as server:
        ask = {"url": f"{server.url}/tokenize", "json": {"prompt": text}, "timeout": 200}
        long = threading.Thread(target=lambda: answers.append(httpx.post(**ask)))
        long.start()
        assert begun.wait(60)
        assert httpx.get(f"{server.url}/health", timeout=200).status_code == 200
        may_go_on.set()
        long.join()

    assert answers[0].json()["count"] == len(text)
