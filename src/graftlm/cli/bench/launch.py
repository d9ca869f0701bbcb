"""Launches a server and notes when it first answers, when it is ready, and when its first token is there.

It uses nothing but the standard library, so that what is measured is the server. It does not judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Self

import msgspec

from graftlm.contracts.errors import GraftlmError
from graftlm.processes.in_hand import start_in_hand

_POLL_S = 0.01
_LAST_LINES = 12
_GRACE_S = 20

#: Any vocabulary has these; the second token of a fresh model is never in a prefix cache.
_PROMPT = [10, 11, 12, 13]


class LaunchFailed(GraftlmError):
    """The server ended before it served; the text has its last words."""

    def __init__(self, command: str, *, code: int | None, words: str) -> None:
        ended = f"ended with exit code {code}" if code is not None else "did not become ready"
        super().__init__(
            f"{command!r} {ended}" + (f"; its last words:\n{words}" if words else " and wrote nothing")
        )


class StartTimes(msgspec.Struct, kw_only=True):
    """Seconds since the launch."""

    answered_s: float
    """The port answers /health, if only to say that it is starting."""
    ready_s: float
    first_token_s: float


class ServerProcess:
    """Any server that answers /health and speaks the OpenAI API, on a free port of 127.0.0.1.

    `command` makes the command line out of the port; `title` is what it is called in errors. The server leads a
    process group of its own, and leaving the `with` block ends all of it.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        title: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.title = title
        self._deadline = time.monotonic() + timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as self
        self._launched = time.perf_counter()
        self.process = start_in_hand(
            command(self.port), stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip

    def wait_for_first_token(self) -> StartTimes:
        """Return the times once a token has been made; raises LaunchFailed."""
        answered = self._wait(lambda status: status is not None)
        ready = self._wait(lambda status: status == 200)
        try:
            model = self.get("/v1/models")["data"][0]["id"]
            self._post("/v1/completions", {"model": model, "prompt": _PROMPT, "max_tokens": 1, "ignore_eos": True})
        except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
            words = f"{self.last_words()}\n{error!r}".strip()
            raise LaunchFailed(self.title, code=self.process.poll(), words=words) from error
        return StartTimes(answered_s=answered, ready_s=ready, first_token_s=self._elapsed())

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()

    def _wait(self, enough: Callable[[int | None], bool]) -> float:
        while not enough(self._health()):
            code = self.process.poll()
            if code is not None or time.monotonic() > self._deadline:
                raise LaunchFailed(self.title, code=code, words=self.last_words().strip())
            time.sleep(_POLL_S)
        return self._elapsed()

    def _health(self) -> int | None:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, HTTPException):  # nobody is there, or something that speaks no HTTP
            return None

    def _elapsed(self) -> float:
        return time.perf_counter() - self._launched

    def last_words(self) -> str:
        """Return the last lines that the server and its children wrote."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-_LAST_LINES:])

    def end(self) -> None:
        """Ask the server to end, then sweep away what is left of its group."""
        try:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # then by force
                self.process.wait(timeout=_GRACE_S)
        finally:  # also if somebody is tired of waiting
            with contextlib.suppress(ProcessLookupError):  # nothing is left, as it should be
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class LaunchedServer(ServerProcess):
    """`graftlm serve` with these arguments, run by this interpreter: from a warm parent only with --preload."""

    def __init__(
        self, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = 600.0
    ) -> None:
        cold = [] if "--preload" in arguments else ["--no-preload"]
        words = ["graftlm", "serve", *arguments, *cold]
        super().__init__(
            lambda port: [sys.executable, "-m", *words, "--host=127.0.0.1", f"--port={port}"],
            title=" ".join(words), environment=environment, timeout_s=timeout_s,
        )  # fmt: skip
