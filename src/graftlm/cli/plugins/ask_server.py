"""Fetches what a running server says of its plugins; knows no explanation."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from graftlm.cli.chat_server import ServerTrouble

_TIMEOUT_S = 30


def fetch_description(url: str, *, api_key: str | None) -> dict[str, Any]:
    """Return GET /plugins?events=true of the server at `url`; ServerTrouble says what is wrong with it."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ServerTrouble(url, problem="it is no web address", cure="write it as http://127.0.0.1:8000")
    place = url.rstrip("/").removesuffix("/v1") + "/plugins?events=true"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(place, headers=headers), timeout=_TIMEOUT_S) as answer:
            described = json.load(answer)
    except urllib.error.HTTPError as error:
        cure = {401: "give its key with --api-key or GRAFTLM_API_KEY", 503: "wait until it is ready"}
        raise ServerTrouble(url, problem=f"it answered {error.code}", cure=cure.get(error.code, "")) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerTrouble(
            url, problem=f"it cannot be asked ({reason})", cure="start it with `graftlm serve`"
        ) from None
    if not isinstance(described, dict) or "plugins" not in described:
        raise ServerTrouble(url, problem="it is no graftlm server")
    return described
