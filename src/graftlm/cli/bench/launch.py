"""Launches `graftlm serve` and notes when it first answers, when it is ready, and when its first token is there.

It uses nothing but the standard library, so that what is measured is the server. It does not judge.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import msgspec

from graftlm.contracts.errors import GraftlmError

_POLL_S = 0.01
_LAST_LINES = 12

#: Any vocabulary has these; the second token of a fresh model is never in a prefix cache.
_PROMPT = [10, 11, 12, 13]


class LaunchFailed(GraftlmError):
    """The server ended before it served; the text has its last words."""

    def __init__(self, command: str, *, code: int | None, words: str) -> None:
        ended = f"ended with exit code {code}" if code is not None else "did not become ready"
        super().__init__(f"{command!r} {ended}; its last words:\n{words}")


class StartTimes(msgspec.Struct, kw_only=True):
    """Seconds since the launch."""

    answered_s: float
    """The port answers /health, if only to say that it is starting."""
    ready_s: float
    first_token_s: float


class LaunchedServer:
    """One server of one's own on a free port of 127.0.0.1, ended by leaving the `with` block."""

    def __init__(self, arguments: Sequence[str], *, timeout_s: float = 600.0) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._deadline = time.monotonic() + timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as self
        self.command = ["graftlm", "serve", *arguments]
        command = [sys.executable, "-m", *self.command, "--host=127.0.0.1", f"--port={self.port}"]
        self._launched = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ}
        )

    def wait_for_first_token(self) -> StartTimes:
        """Return the times once a token has been made; raises LaunchFailed."""
        answered = self._wait(lambda status: status is not None)
        ready = self._wait(lambda status: status == 200)
        model = self.get("/v1/models")["data"][0]["id"]
        self._post("/v1/completions", {"model": model, "prompt": _PROMPT, "max_tokens": 1, "ignore_eos": True})
        return StartTimes(answered_s=answered, ready_s=ready, first_token_s=self._elapsed())

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()

    def _wait(self, enough: Any) -> float:
        while not enough(self._health()):
            code = self.process.poll()
            if code is not None or time.monotonic() > self._deadline:
                raise LaunchFailed(" ".join(self.command), code=code, words=self.last_words().strip())
            time.sleep(_POLL_S)
        return self._elapsed()

    def _health(self) -> int | None:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def _elapsed(self) -> float:
        return time.perf_counter() - self._launched

    def last_words(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_LAST_LINES:])

    def __enter__(self) -> LaunchedServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
