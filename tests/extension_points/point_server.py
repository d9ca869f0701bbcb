"""A real server over installed packages, and what it says of its plugins."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plugin_packages import Site
from server import Server

#: Folders of the example packages that these tests install.
PACKAGES = ("json_stats", "echo_endpoint", "model_files", "int8_weights", "handmade_ops", "gather_attention")
PROMPT = [5, 6, 7, 8]


class LiveServer:
    """Ready when constructed, ended by `stop`; `key` is sent with each call."""

    def __init__(
        self, site: Site, *args: str, key: str = "", model: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self.key = key
        self.server = Server(list(args), env={**site.environment, **(env or {})}).start()
        self.model = model or args[0]

    def stop(self) -> int:
        return self.server.stop()

    def call(self, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any]:
        """Return status and JSON (or text) of a GET, or of a POST of `body`."""
        key = self.key if key is None else key
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.base_url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=200) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def complete(self, *, max_tokens: int = 8) -> list[int]:
        """Continue PROMPT greedily and return the token ids."""
        status, answer = self.call("/v1/completions", self._body(max_tokens))
        assert status == 200, answer
        ids: list[int] = answer["choices"][0]["token_ids"]
        return ids

    def stream(self, *, max_tokens: int) -> int:
        """Stream a completion and return how many events came."""
        body = json.dumps({**self._body(max_tokens), "stream": True}).encode()
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        request = urllib.request.Request(f"{self.server.base_url}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=200) as response:
            return sum(line.startswith(b"data: {") for line in response)

    def _body(self, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True,
        }  # fmt: skip

    def plugins(self) -> dict[str, dict[str, Any]]:
        """Return the rows of GET /plugins by point=name."""
        _, described = self.call("/plugins")
        return {f"{row['point']}={row['name']}": row for row in described["plugins"]}

    def events(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        _, described = self.call("/plugins?events=true")
        return [e for e in described["events"] if e["event"] == event and facts.items() <= e["facts"].items()]


@contextmanager
def live_server(*args: Any, **options: Any) -> Iterator[LiveServer]:
    server = LiveServer(*args, **options)
    try:
        yield server
    finally:
        server.stop()


def lines_of(file: Path, count: int) -> list[dict[str, Any]]:
    """Return the JSON lines of a file once there are as many; a thread may still write."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        time.sleep(0.05)
    raise AssertionError(f"{file} has fewer than {count} lines")
