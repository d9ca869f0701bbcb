"""Documents what routes answer, from the structs they answer with; the document is what /openapi.json says.

It does not know the routes: each asks for its own documentation.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from graftlm.frontend.http.endpoint_blame import head_of
from graftlm.frontend.http.errors import ErrorResponse
from graftlm.frontend.http.schemas import responses as shapes

_REFERENCE = "#/components/schemas/{name}"
_STRUCTS = (
    shapes.Completion, shapes.CompletionChunk, shapes.ChatCompletion, shapes.ChatChunk, shapes.ModelCard,
    shapes.ModelList, shapes.Tokenized, shapes.Detokenized, shapes.Health, shapes.Version, ErrorResponse,
)  # fmt: skip
_DESCRIPTIONS = {
    400: "The request cannot be served; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or route.",
    405: "The route has no such method.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    500: "The engine or the server failed.",
    503: "The engine is not ready yet, or the server is shutting down.",
}

Responses = dict[int | str, dict[str, Any]]


def _reference(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=struct.__name__)}


def answers(
    struct: type[msgspec.Struct], *, description: str, stream_of: type[msgspec.Struct] | None = None
) -> Responses:
    """Document a 200 with the JSON of `struct`, or a stream of `stream_of`."""
    content: dict[str, Any] = {"application/json": {"schema": _reference(struct)}}
    if stream_of is not None:
        content["text/event-stream"] = {"schema": _event_of(stream_of)}
    return {200: {"description": description, "content": content}}


def _event_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Document one event of a stream."""
    said = {"anyOf": [_reference(struct), _reference(ErrorResponse)]}
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": said}
    return {
        "type": "object",
        "description": f"One event: `data` is a {struct.__name__} as JSON, or an ErrorResponse; at last `[DONE]`.",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, chunk]}},
        "required": ["data"],
    }


def errors(*statuses: int) -> Responses:
    """Document errors in OpenAI's shape."""
    content = {"application/json": {"schema": _reference(ErrorResponse)}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses}


def text(*, description: str) -> Responses:
    """Document a 200 in plain text."""
    return {200: {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}}


GENERATING = errors(400, 401, 404, 413, 415, 500, 503)
READING = errors(401)


def install_openapi(app: FastAPI, *, has_keys: bool) -> None:
    """Make `app.openapi()` tell the truth: our errors instead of FastAPI's 422, and the API key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app, has_keys=has_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _build(app: FastAPI, *, has_keys: bool) -> dict[str, Any]:
    state = app.state.server
    first = [route for route in app.routes if route in state.override_routes]
    # The last of two operations is described, the first one answers: overrides come last here.
    routes = [*(route for route in app.routes if route not in first), *first]
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=routes,
        servers=[{"url": app.root_path}] if app.root_path else None,
    )  # fmt: skip
    for path in document["paths"].values():
        for operation in path.values():
            operation.get("responses", {}).pop("422", None)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for leftover in ("HTTPValidationError", "ValidationError"):
        components.pop(leftover, None)
    components |= msgspec.json.schema_components(_STRUCTS, ref_template=_REFERENCE)[1]
    if has_keys:
        document["components"]["securitySchemes"] = {"ApiKey": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"ApiKey": []}]
        document["paths"].get("/health", {}).get("get", {})["security"] = []
        for path, operations in document["paths"].items():
            if head_of(path) in state.open_prefixes:
                for operation in operations.values():
                    operation["security"] = []
    return document
