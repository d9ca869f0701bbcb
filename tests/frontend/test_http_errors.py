"""The shape of every error, the API key, and the limit on bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from http_harness import HttpServer, byte_tokenizer

from graftlm.plugins import find_host

JSON = {"content-type": "application/json"}
ROUTES = ("/v1/models", "/version", "/metrics", "/plugins", "/openapi.json", "/docs", "/nothing")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    tokenizer = byte_tokenizer(tmp_path_factory.mktemp("tok"))
    with HttpServer(tokenizer=tokenizer, max_request_bytes=20_000) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    tokenizer = byte_tokenizer(tmp_path_factory.mktemp("tok"))
    with HttpServer(tokenizer=tokenizer, api_key=["first", "second"], metrics_no_auth=True) as running:
        yield running


def error_of(response: httpx.Response) -> dict[str, object]:
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_an_unknown_field_is_refused_with_the_nearest_known(server: HttpServer) -> None:
    """Nothing is ignored in silence."""
    response = server.post("/v1/completions", prompt="a", temprature=1, top_pp=1)

    error = error_of(response)
    assert response.status_code == 400
    assert error["param"] == "temprature"
    assert "'temperature'" in str(error["message"])
    assert error["code"] == "unknown_field"
    nested = error_of(
        server.post("/v1/completions", prompt="a", stream=True, stream_options={"includeusage": True})
    )
    assert nested["param"] == "stream_options.includeusage"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"prompt": ', "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "no body"),
        (b"", "no body"),
        (b"[" * 10_000, "nested too deep"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"prompt": "a", "temperature": NaN}', "finite"),
        (b"{}", "prompt is missing"),
    ],
)
def test_a_malformed_body_is_a_400(server: HttpServer, body: bytes, words: str) -> None:
    """Broken JSON, JSON that is no object, and numbers that are none."""
    response = httpx.post(f"{server.url}/v1/completions", content=body, headers=JSON)

    assert response.status_code == 400
    assert words.lower() in str(error_of(response)["message"]).lower()


def test_a_body_that_is_not_declared_as_json_is_a_415(server: HttpServer) -> None:
    """curl -d without a header says so at once, with the cure."""
    response = httpx.post(f"{server.url}/v1/completions", data={"prompt": "a"})

    assert response.status_code == 415
    assert "Content-Type: application/json" in str(error_of(response)["message"])


def test_a_body_above_the_limit_is_a_413(server: HttpServer) -> None:
    """Whether its length is declared or it comes in chunks."""
    big = json.dumps({"prompt": "a" * 30_000}).encode()
    declared = httpx.post(f"{server.url}/v1/completions", content=big, headers=JSON)
    chunked = httpx.post(
        f"{server.url}/v1/completions", content=(big[i : i + 5000] for i in range(0, len(big), 5000)), headers=JSON
    )

    for response in (declared, chunked):
        assert response.status_code == 413
        assert "--max-request-bytes" in str(error_of(response)["message"])


def test_unknown_models_routes_and_methods_have_their_statuses(server: HttpServer) -> None:
    """404 with the served names, 404 with the path, 405 with the methods that are possible."""
    model = server.post("/v1/completions", model="gpt-9", prompt="a")
    route = httpx.get(f"{server.url}/v1/nothing")
    method = httpx.get(f"{server.url}/v1/completions")

    assert (model.status_code, error_of(model)["code"]) == (404, "model_not_found")
    assert "talker" in str(error_of(model)["message"])
    assert (route.status_code, error_of(route)["code"]) == (404, "unknown_route")
    assert "/v1/nothing" in str(error_of(route)["message"])
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert "use POST" in str(error_of(method)["message"])


def test_a_bug_is_a_500_in_the_same_shape(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause goes to the log, not to the caller."""
    monkeypatch.setattr(server.assets.tokenizer.__class__, "encode", lambda *_, **__: 1 / 0)

    response = server.post("/tokenize", prompt="a")

    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "division" not in response.text


@pytest.mark.parametrize("path", ROUTES)
def test_the_api_key_guards_every_route_but_health(guarded: HttpServer, path: str) -> None:
    """Without a key or with a wrong one: 401, even where there is no route."""
    if path == "/metrics":
        assert httpx.get(guarded.url + path).status_code == 200
        return
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first"},
        {"authorization": "Bearer"},
    ):
        response = httpx.get(guarded.url + path, headers=headers)

        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert error_of(response)["code"] == "invalid_api_key"
    right = httpx.get(guarded.url + path, headers={"authorization": "Bearer second"})
    # The server lives in this process, which another test may have given a plugin host.
    without_host = 200 if find_host() is not None else 503
    assert right.status_code == {"/nothing": 404, "/plugins": without_host}.get(path, 200)


def test_every_key_opens_and_health_needs_none(guarded: HttpServer) -> None:
    """Several keys are possible; the openai client raises its own error for a wrong one."""
    for key in ("first", "second"):
        assert guarded.openai(api_key=key).models.list().data[0].id == "talker"
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        guarded.openai(api_key="third").completions.create(model="talker", prompt="a")


def test_metrics_need_the_key_unless_they_are_opened(server: HttpServer) -> None:
    """--metrics-no-auth opens /metrics alone, and a path that only looks like it stays shut."""
    with HttpServer(api_key=["k"]) as shut:
        for path in ("/metrics", "/metrics/", "/health/", "//health", "/HEALTH"):
            assert httpx.get(shut.url + path).status_code == 401
    assert httpx.get(f"{server.url}/metrics").status_code == 200


def test_the_openapi_document_tells_the_truth_about_errors(server: HttpServer, guarded: HttpServer) -> None:
    """Our errors instead of FastAPI's 422; the key as a security scheme where there is one."""
    document = httpx.get(f"{server.url}/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]

    assert {"200", "400", "401", "404", "413", "415", "500", "503"} == set(operation["responses"])
    assert document["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False
    assert "ErrorResponse" in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "security" not in document
    headers = {"authorization": "Bearer first"}
    assert httpx.get(f"{guarded.url}/openapi.json", headers=headers).json()["security"] == [{"ApiKey": []}]
