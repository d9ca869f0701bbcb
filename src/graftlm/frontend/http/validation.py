"""Turns the complaints of pydantic about a request body into one RequestError.

It does not know the schemas: what it says comes from the complaint alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graftlm.contracts.errors import NotYetSupported, RequestError
from graftlm.frontend.http.errors import InvalidField, MalformedBody, UnknownField, WrongContentType
from graftlm.plugins.spelling import counted

_SHOWN_CHARS = 80


def translate(complaints: Sequence[Any], *, content_type: str | None) -> RequestError:
    """Return the error for the first complaint; it says how many more there are."""
    first = complaints[0]
    kind, value, context = first["type"], first.get("input"), first.get("ctx", {})
    param = field_path(first["loc"])
    if kind == "json_invalid":
        position = first["loc"][-1]
        return MalformedBody(f"the body is not valid JSON: {context.get('error', '')} at character {position}")
    if not param:
        if isinstance(value, bytes):
            return WrongContentType(content_type)
        if kind == "missing" or value is None:
            return MalformedBody("the request has no body; send a JSON object")
        if kind != "unknown_field":
            return MalformedBody(f"the body must be a JSON object, not {shown(value)}")
    if kind == "unknown_field":
        field = context["field"]
        path = f"{param}.{field}" if param else field
        return UnknownField(f"unknown field {path!r}{context['cure']}{_more(complaints)}", param=path)
    if kind == "not_yet_supported":
        return NotYetSupported(param, what=context["what"])
    if kind == "missing":
        return InvalidField(f"{param} is missing{_more(complaints)}", param=param)
    message = first["msg"]
    sentence = message if kind == "wrong_shape" else message[:1].lower() + message[1:]
    return InvalidField(f"{param}={shown(value)} is not possible: {sentence}{_more(complaints)}", param=param)


def field_path(loc: Sequence[str | int]) -> str:
    """Write a location as callers write it: messages[0].content."""
    path = ""
    for place, part in enumerate(loc):
        if place == 0 and part in ("body", "query", "path", "header"):
            continue
        if part == "[key]":
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def shown(value: Any) -> str:
    """Write a value into an error: scalars as they are, containers by their kind."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case int() if abs(value) >= 10**_SHOWN_CHARS:
            return "a number of very many digits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _more(complaints: Sequence[Any]) -> str:
    more = len(complaints) - 1
    return f" (and {counted(more, 'more complaint')})" if more else ""
