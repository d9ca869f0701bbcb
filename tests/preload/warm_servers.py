"""`graftlm preload` and `graftlm serve` for tests: real processes, what they answer and what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plugin_packages import run_graftlm
from server import Server

WEIGHTS_TAKEN = "weights are those of the warm parent"
STARTS_COLD = "starts cold"
PROMPT = [5, 17, 31, 44, 9]


class WarmServer(Server):
    """A server that may take from the warm parents of `folder`."""

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.base_url + path, timeout=30) as response:
            return json.loads(response.read())

    def complete(self, prompt: list[int] | None = None, *, max_tokens: int = 12) -> list[int]:
        """Return the ids of a greedy completion."""
        body = {
            "model": self.args[0], "prompt": prompt or PROMPT, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            ids: list[int] = json.loads(response.read())["choices"][0]["token_ids"]
        return ids

    def ledgers(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return what each process's ledger says, in order, without times and the memory that is free just now."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for event in self.get("/plugins?events=true")["events"]:
            facts = {k: v for k, v in event.get("facts", {}).items() if k != "ms"}
            if facts.get("hook") == "get_available_memory":
                del facts["answer"]
            entry = (event["event"], event.get("plugin"), json.dumps(facts, sort_keys=True), event.get("count", 1))
            found.setdefault(event["process"], []).append(entry)
        return found

    @property
    def core_pid(self) -> int:
        return int(self.get("/plugins")["plan"]["processes"]["engine core"]["pid"])

    def said(self, text: str) -> list[str]:
        return [line for line in self.output.splitlines() if text in line]


class Warm:
    """A folder of warm parents, with the environment that finds it."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {**(environment or {}), "GRAFTLM_PRELOAD_DIR": str(folder)}

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_graftlm("preload", *words, env={**self.environment, **environment}, timeout_s=120)

    def preload(self, *words: str) -> dict[str, Any]:
        """Start a parent and return what it says of itself."""
        done = self.command(*words, "--json")
        assert done.returncode == 0, done.stderr
        (facts,) = json.loads(done.stdout)
        return dict(facts)

    def status(self) -> list[dict[str, Any]]:
        return list(json.loads(self.command("--status", "--json").stdout))

    def stop(self) -> None:
        for facts in self.status():
            os.kill(facts["pid"], signal.SIGKILL)

    @contextmanager
    def serve(self, *args: str, **environment: str) -> Iterator[WarmServer]:
        with WarmServer(list(args), env={**self.environment, **environment}) as server:
            assert isinstance(server, WarmServer)
            yield server

    @contextmanager
    def cold(self, *args: str) -> Iterator[WarmServer]:
        """The same server where there is no warm parent."""
        with self.serve(*args, GRAFTLM_PRELOAD_DIR=str(self.folder / "nobody")) as server:
            assert not server.said("warm parent")
            yield server
