"""--scheduler-cls: a scheduler that a plugin brings takes the place of the engine's own."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm
from server import Server

SCHEDULERS = """
    from graftlm.scheduler import Scheduler

    class OneAtATime(Scheduler):
        def __init__(self, config, *, num_blocks, block_size):
            super().__init__(config, num_blocks=num_blocks, block_size=block_size)
            self._max_num_seqs = 1

    class Fails(Scheduler):
        def schedule(self):
            raise RuntimeError("no plan today")

    class NoScheduler:
        def schedule(self):
            return None
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package acme-plans is installed."""
    names = {"one": "acme_plans:OneAtATime", "fails": "acme_plans:Fails", "none": "acme_plans:NoScheduler"}
    site = Site(tmp_path / "site").write(
        "acme-plans", entry_points={"schedulers": names}, files={"acme_plans.py": SCHEDULERS}
    )
    return site.environment


@pytest.mark.parametrize("named", ["one", "acme_plans:OneAtATime"])
def test_a_plugin_schedules(env, tiny_llama: Path, named: str) -> None:
    """By name or by path: it is active in the engine core, and answers as the engine's own does."""
    body = {"prompt": [5, 6, 7], "max_tokens": 5, "temperature": 0}
    answers = []
    for flags in ([], ["--scheduler-cls", named]):
        with Server([str(tiny_llama), *flags], env=env) as server:
            request = urllib.request.Request(
                f"{server.base_url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            answers.append(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
            with urllib.request.urlopen(f"{server.base_url}/plugins?events=true") as response:
                told = json.load(response)

    assert answers[0] == answers[1]
    (row,) = [row for row in told["plugins"] if row["name"] == "one"]
    assert row["state"] == "active" and row["processes"]["engine core"] == "active"
    assert [e["facts"]["scheduler"] for e in told["events"] if e["event"] == "scheduler_chosen"] == [named]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("none", "--scheduler-cls='none' cannot be a scheduler: it has no add_request, abort, update, stats"),
        ("onee", "--scheduler-cls='onee': nothing provides this name; did you mean one"),
        ("fails", "raised by plugin 'fails' (distribution acme-plans 1.0), hook schedule in process 'engine core'"),
    ],
)
def test_what_is_wrong_with_one_is_said(env, tiny_llama: Path, named: str, said: str) -> None:
    """No scheduler, no such name, an exception while it plans: each with the flag, the name or the plugin."""
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--scheduler-cls", named, env=env)

    assert done.returncode == 1
    assert said in done.stderr


def test_explain_tells_which_one_schedules(env) -> None:
    """The engine's own unless the flag names another, and how to ask for one that is installed."""
    own = run_graftlm("plugins", "explain", "scheduler", env=env).stdout
    other = run_graftlm("plugins", "explain", "scheduler", "one", env=env).stdout
    taken = run_graftlm("plugins", "explain", "scheduler", "--scheduler-cls", "one", env=env).stdout

    assert own.startswith("scheduler: graftlm.scheduler:Scheduler\n")
    assert "--scheduler-cls one asks for it" in other
    assert taken.startswith("scheduler: one of acme-plans 1.0")
