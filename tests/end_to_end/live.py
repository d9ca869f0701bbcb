"""Real servers under test: their processes by name, their metrics, and requests to them over HTTP."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from server import Server

FRONT_END = "front end"
#: When a test gives up. No rule of the server: a machine may be busy with something else.
PATIENCE_S = 60.0


class LiveServer(Server):
    """A server whose temporary files lie in a directory of their own, and all of whose processes are known."""

    def __init__(self, *args: str, **options: Any) -> None:
        self.temp_dir = Path(tempfile.mkdtemp(prefix="e2e-", dir="/tmp"))
        super().__init__(list(args), env={"TMPDIR": str(self.temp_dir), **options.pop("env", {})}, **options)
        self.model = args[0]
        self.code: int | None = None

    def stop(self, *, timeout_s: float = 60) -> int:
        self.code = super().stop(timeout_s=timeout_s)
        shutil.rmtree(self.temp_dir, ignore_errors=True)
        return self.code

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def processes(self) -> dict[str, int]:
        """Name → pid of every process of the server that runs; it leads a session of its own, so none escapes."""
        found: dict[str, int] = {}
        for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            if name := _name_in_session(pid, self.pid):
                found.setdefault(name, pid)  # a child has its parent's command line until it has one of its own
        return found

    def leftovers(self) -> list[str]:
        """What an ended server left behind: processes and files."""
        files = [str(path) for path in self.temp_dir.rglob("*")] if self.temp_dir.exists() else []
        return [*self.processes(), *files]

    def metrics(self) -> dict[str, float]:
        """The numbers of /metrics by name without our prefix; of several series, their sum."""
        found: dict[str, float] = {}
        for line in httpx.get(f"{self.base_url}/metrics", timeout=30).text.splitlines():
            if line.startswith("graftlm:"):
                name, _, value = line.removeprefix("graftlm:").rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """POST /v1/completions, which must be a 200."""
        response = self.post("/v1/completions", prompt=prompt, **fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return httpx.post(self.base_url + path, json={"model": self.model, **fields}, timeout=200)

    @contextmanager
    def streaming(self, prompt: Any, **fields: Any) -> Iterator[Stream]:
        """An open stream of /v1/completions; leaving the block closes the connection."""
        body = {"model": self.model, "prompt": prompt, "stream": True, **fields}
        with (
            httpx.Client(timeout=200) as http,
            http.stream("POST", f"{self.base_url}/v1/completions", json=body) as response,
        ):
            yield Stream(response)


class Stream:
    """What a streaming client sees."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.events: list[dict[str, Any]] = []
        self.done = False
        self._lines = response.iter_lines() if self.status == 200 else iter(())
        if self.status != 200:
            self.events = [json.loads(response.read())]

    def take(self, count: int) -> list[dict[str, Any]]:
        """Read `count` more events, or all there are."""
        taken = []
        while len(taken) < count and (event := self._next()) is not None:
            taken.append(event)
        return taken

    def rest(self) -> list[dict[str, Any]]:
        """Read to the end; a connection that is cut counts as an end."""
        try:
            self.take(1 << 30)
        except httpx.TransportError as cut:
            self.events.append({"error": {"message": f"connection cut: {cut!r}", "code": "cut"}})
        return self.events

    def _next(self) -> dict[str, Any] | None:
        for line in self._lines:
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                self.events.append(json.loads(line.removeprefix("data: ")))
                return self.events[-1]
        return None

    @property
    def error(self) -> dict[str, Any] | None:
        """What the last event complains of."""
        return self.events[-1].get("error") if self.events else None


@dataclasses.dataclass
class Call:
    """A request of a client in a thread of its own, and how it ended."""

    stream: Stream | None = None
    status: int = 0
    error: dict[str, Any] | None = None
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    def num_events(self) -> int:
        return len(self.stream.events) if self.stream is not None else 0


def call_in_thread(server: LiveServer, prompt: Any, *, stream: bool, **fields: Any) -> Call:
    """Send a request to /v1/completions and read its answer beside the test."""
    call = Call()

    def run() -> None:
        try:
            if stream:
                with server.streaming(prompt, **fields) as call.stream:
                    call.status = call.stream.status
                    call.stream.rest()
                    call.error = call.stream.error
            else:
                response = server.post("/v1/completions", prompt=prompt, **fields)
                call.status, call.error = response.status_code, response.json().get("error")
        except httpx.TransportError as cut:
            call.error = {"message": repr(cut), "code": "cut"}
        call.ended.set()

    threading.Thread(target=run, daemon=True).start()
    return call


def _name_in_session(pid: int, leader: int) -> str | None:
    try:
        if os.getsid(pid) != leader or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (ProcessLookupError, FileNotFoundError):
        return None
    if "--name" in words:
        return words[words.index("--name") + 1]
    return FRONT_END if pid == leader else f"other {pid}: {' '.join(words)}"


def wait_until(condition: Callable[[], Any], *, step_s: float = 0.02, what: str = "") -> None:
    """Wait for `condition`; given up after `PATIENCE_S`."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < PATIENCE_S, f"still waiting after {waited:.1f} s: {what}"
        time.sleep(step_s)


@dataclasses.dataclass(frozen=True)
class Memory:
    """A process's proportional share (PSS) in bytes: the whole, and without pages of files.

    The latter's share also changes when other programs on the machine map the same libraries.
    """

    whole: int
    own: int


def memory_of(pid: int) -> Memory:
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        kilobytes[name.rstrip(":")] = int(value)
    own = kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"]
    return Memory(whole=kilobytes["Pss"] * 1024, own=own * 1024)
