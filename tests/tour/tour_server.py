"""A real server with installed plugin packages, and everything it says about itself: ledgers, log, witness."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from plugin_packages import Site
from server import Server

FRONT_END, CORE = "front end", "engine core"


class TourServer:
    """`graftlm serve MODEL FLAGS` over the packages of `site`; ready when constructed, ended by `stop`."""

    def __init__(self, site: Site, model: Path | str, *flags: str, records: Path) -> None:
        self.model = str(model)
        self.records_folder = records
        records.mkdir(exist_ok=True)
        self.records_before = self.records()
        env = {**site.environment, "TOUR_RECORDS": str(records), "GRAFTLM_CACHE": str(records.parent / "cache")}
        self.server = Server([self.model, *flags], env=env).start()
        described = self.get("/plugins?events=true")
        self.plan: dict[str, Any] = described["plan"]
        self.plugins: list[dict[str, Any]] = described["plugins"]
        self.all_events: list[dict[str, Any]] = described["events"]

    def stop(self) -> int:
        return self.server.stop()

    # Asking the server.

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.server.base_url + path, timeout=200) as response:
            return json.loads(response.read())

    def complete(self, prompt: list[int], *, max_tokens: int = 8, **params: Any) -> list[int]:
        """Return the token ids of a completion."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **params,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.server.base_url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=200) as response:
            ids: list[int] = json.loads(response.read())["choices"][0]["token_ids"]
        return ids

    # What it said.

    @property
    def pids(self) -> dict[str, int]:
        return {name: facts["pid"] for name, facts in self.plan["processes"].items()}

    @property
    def workers(self) -> list[str]:
        return sorted(name for name in self.pids if name.startswith("worker "))

    @property
    def children(self) -> list[str]:
        return [CORE, *self.workers]

    def events(self, event: str, process: str | None = None, **facts: Any) -> list[dict[str, Any]]:
        """Return the ledger's events of that name, of one process or of all, whose facts include `facts`."""
        return [
            e
            for e in self.all_events
            if e["event"] == event
            and process in (None, e["process"])
            and facts.items() <= e.get("facts", {}).items()
        ]

    def hooks(self, process: str) -> dict[str, int]:
        """Return how often each platform hook was called in a process."""
        counts: dict[str, int] = {}
        for event in self.events("hook_called", process):
            name = event["facts"]["hook"]
            counts[name] = counts.get(name, 0) + event.get("count", 1)
        return counts

    def ledger(self, process: str) -> list[str]:
        """Return what happened in a process, in order: the event, and for a hook its name."""
        return [
            e["facts"]["hook"] if e["event"] == "hook_called" else e["event"]
            for e in self.all_events
            if e["process"] == process
        ]

    def log(self, text: str) -> list[str]:
        """Return the lines of the log that contain `text`."""
        return [line for line in self.server.output.splitlines() if text in line]

    def plugin(self, name: str, point: str | None = None) -> dict[str, Any]:
        """Return the one row of GET /plugins for that name."""
        (row,) = [p for p in self.plugins if p["name"] == name and point in (None, p["point"])]
        return row

    # What the witness wrote.

    def records(self, what: str | None = None, **facts: Any) -> list[dict[str, Any]]:
        lines = [line for file in sorted(self.records_folder.glob("*.jsonl")) for line in file.open()]
        whole = [line for line in lines if line.endswith("\n")]  # another process may be writing the last
        return [r for r in map(json.loads, whole) if what in (None, r["what"]) and facts.items() <= r.items()]

    def wait_for_records(self, what: str, count: int, **facts: Any) -> list[dict[str, Any]]:
        """Return these records once there are as many; a thread of the witness may still write."""
        deadline = time.monotonic() + 60
        while len(found := self.records(what, **facts)) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(found) == count, found
        return found
