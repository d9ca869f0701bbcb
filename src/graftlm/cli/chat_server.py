"""Chats with a running server through the OpenAI API, with the standard library only.

It works with any server that speaks that API and knows nothing of the engine behind it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from graftlm.cli.chat import ChatSettings, Message
from graftlm.contracts.errors import GraftlmError

_CONNECT_TIMEOUT_S = 600.0  # the first token of a long prompt may take its time


class ServerTrouble(GraftlmError):
    """The server could not be asked, or declined; the text names it and the cure."""

    def __init__(self, url: str, *, problem: str, cure: str = "") -> None:
        super().__init__(f"--url={url!r}: {problem}" + (f"; {cure}" if cure else ""))


class ServerChat:
    """One chat with the server at `url`; `model` None takes the first that it serves."""

    def __init__(self, url: str, *, model: str | None, api_key: str | None, settings: ChatSettings) -> None:
        if not _is_web_address(url):
            raise ServerTrouble(url, problem="it is no web address", cure="write it as http://127.0.0.1:8000")
        self.url = url
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = api_key
        self._settings = settings
        self.cut_at = ""
        self.model = model or self._first_model()

    def __enter__(self) -> ServerChat:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held between two answers."""

    def stream(self, messages: Sequence[Message]) -> Iterator[str]:
        """Yield the pieces of the answer as the server sends them."""
        s = self._settings
        body: dict[str, Any] = {
            "model": self.model, "messages": list(messages), "stream": True,
            "temperature": s.temperature, "top_p": s.top_p,
        }  # fmt: skip
        if s.max_tokens is not None:
            body["max_tokens"] = s.max_tokens
        if s.seed is not None:
            body["seed"] = s.seed
        self.cut_at = ""
        with self._open("/chat/completions", body) as response:
            for event in self._events(response):
                if said := event.get("error"):
                    problem = said.get("message", said) if isinstance(said, dict) else said
                    raise ServerTrouble(self.url, problem=str(problem))
                for choice in event.get("choices") or []:
                    if choice.get("finish_reason") == "length":
                        self.cut_at = s.limit()
                    yield (choice.get("delta") or {}).get("content") or ""

    def _events(self, response: HTTPResponse) -> Iterator[dict[str, Any]]:
        try:
            for line in response:
                field, _, data = line.decode().strip().partition(":")
                if field == "data" and data.strip() == "[DONE]":
                    return
                if field == "data":
                    event = json.loads(data)
                    if not isinstance(event, dict):
                        raise ValueError(f"the event {data.strip()[:80]} is no object")
                    yield event
        except (OSError, HTTPException) as error:
            raise ServerTrouble(self.url, problem=f"it went away while it answered ({error})") from None
        except (ValueError, RecursionError) as error:
            raise self._no_openai(error) from None
        raise ServerTrouble(self.url, problem="its answer ended early")

    def _first_model(self) -> str:
        with self._open("/models") as response:
            try:
                models = json.load(response)["data"]
                names = [str(model["id"]) for model in models]
            except (OSError, HTTPException, ValueError, RecursionError, LookupError, TypeError) as error:
                raise self._no_openai(error) from None
        if not names:
            raise ServerTrouble(self.url, problem="it serves no model")
        return names[0]

    def _no_openai(self, error: Exception) -> ServerTrouble:
        return ServerTrouble(
            self.url, problem=f"its answer is not that of an OpenAI server ({type(error).__name__}: {error})",
            cure="check the address",
        )  # fmt: skip

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        request = urllib.request.Request(
            self._base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}),
        )
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=_CONNECT_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise ServerTrouble(self.url, problem=_explain(error), cure=_cure(error.code)) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServerTrouble(
                self.url, problem=f"it cannot be reached ({reason})", cure="start it with `graftlm serve`"
            ) from None
        return response


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an end, a port that is no number
        return False


def _explain(error: urllib.error.HTTPError) -> str:
    """Prefer the sentence in an OpenAI-shaped body."""
    text = error.read().decode(errors="replace")
    try:
        return f"{error.code}: {json.loads(text)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code}: {text.strip()[:300] or error.reason}"


def _cure(status: int) -> str:
    return {401: "give its key with --api-key or GRAFTLM_API_KEY", 503: "wait until it is ready"}.get(status, "")
