"""schemathesis over /openapi.json against a real server with a tiny model: no 5xx, and answers as documented."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoints
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from server import Server

EXAMPLES = 40
READING = (
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /health",
    "GET /version",
    "GET /metrics",
    "GET /plugins",
)
POSTING = ("POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize")
CHECKS = [
    schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance, negative_data_rejection,
]  # fmt: skip
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE

#: What one field cannot say of another, and what would generate for minutes.
NOT_GENERATED = (
    "model", "suffix", "best_of", "stream_options", "logit_bias", "min_tokens", "max_completion_tokens",
    "tools", "tool_choice", "functions", "function_call", "response_format", "modalities", "top_logprobs",
    "continue_final_message", "chat_template_kwargs",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    with Server([str(tiny_llama), "--max-model-len", "256", "--max-num-seqs", "8"]) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{server.base_url}/openapi.json").json()
    return document


def test_every_route_is_under_test(document: dict[str, Any]) -> None:
    """A new route must be added to the lists above."""
    documented = {f"{m.upper()} {path}" for path, methods in document["paths"].items() for m in methods}

    assert documented == {*READING, *POSTING}


@pytest.mark.parametrize("name", [*READING, *POSTING])
def test_requests_that_follow_the_document_get_what_it_says(
    server: Server, document: dict[str, Any], name: str
) -> None:
    """Any mix of fields gets a documented answer in the documented shape, and mostly a 200."""
    statuses = run(server, narrowed(document), name, POSITIVE)

    assert statuses[404 if "{model}" in name else 200] > sum(statuses.values()) / 2


@pytest.mark.parametrize("name", POSTING)
def test_requests_that_break_the_document_are_refused(server: Server, document: dict[str, Any], name: str) -> None:
    """Wrong types, values out of range, unknown fields and bodies that are none: never a 200, never a 500."""
    statuses = run(server, document, name, NEGATIVE)

    assert set(statuses) <= {400, 404, 415}


def run(server: Server, document: dict[str, Any], name: str, mode: schemathesis.GenerationMode) -> Counter[int]:
    """Send generated requests to one operation and count the statuses."""
    operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    operation = next(o for o in operations if f"{o.method.upper()} {o.path}" == name)
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        response = case.call_and_validate(base_url=server.base_url, checks=CHECKS)
        statuses[response.status_code] += 1

    send()
    assert server.healthy()
    return statuses


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what its grammar cannot say: ids of this model, texts that fit its context, few tokens."""
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    text = {"type": "string", "minLength": 1, "maxLength": 20}
    token_ids = {
        "type": "array", "minItems": 1, "maxItems": 9,
        "items": {"type": "integer", "minimum": 0, "maximum": checkpoints.VOCAB_SIZE - 1},
    }  # fmt: skip
    for name in ("CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest"):
        for field in NOT_GENERATED:
            schemas[name]["properties"].pop(field, None)
    for name in ("CompletionRequest", "ChatRequest"):
        schemas[name]["properties"] |= {
            "max_tokens": {"enum": [1, 2, 3, 4]}, "n": {"enum": [1, 2]}, "stop_token_ids": token_ids,
        }  # fmt: skip
        schemas[name]["required"].append("max_tokens")
    prompts = [text, token_ids, {"type": "array", "minItems": 1, "maxItems": 3, "items": text}]
    schemas["CompletionRequest"]["properties"]["prompt"] = {"anyOf": prompts}
    schemas["ChatMessage"]["properties"]["content"] = text
    schemas["ChatMessage"]["required"].append("content")
    schemas["ChatRequest"]["properties"]["messages"]["maxItems"] = 3
    schemas["TokenizeRequest"]["properties"] = {"prompt": text, "return_token_strs": {"type": "boolean"}}
    schemas["TokenizeRequest"]["required"] = ["prompt"]
    schemas["DetokenizeRequest"]["properties"]["tokens"] = token_ids
    return document
