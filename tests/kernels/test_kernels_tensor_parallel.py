"""Several ranks on one host: the tokens of one, with collectives inside the kept steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from graftlm.plugins.current import find_host, hold_host
from graftlm.testing.elsewhere import run_ranks

sys.path.append(str(Path(__file__).parents[1] / "worker"))

PROMPTS = [([(7 * i + j) % 90 + 3 for j in range(5 + 20 * i)], 6 + 4 * i) for i in range(4)]


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def expected_of(path: Path) -> list[list[int]]:
    """One rank, plain torch."""
    from worker_runs import Engine, greedy

    engine = Engine(path, dtype="float32", custom_ops=["none"], attention_backend="TORCH_PAGED")
    asked = [greedy(f"r{i}", prompt, max_tokens=most) for i, (prompt, most) in enumerate(PROMPTS)]
    return list(engine.outputs(asked).values())


def ask_ranks(path: Path, *, trouble: str = "") -> list[dict[str, Any]]:
    return run_ranks("tp_runs:outputs", str(path), PROMPTS, trouble, size=2)


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_opt"])
def test_two_ranks_give_the_tokens_of_one_by_kept_steps(model, request):
    """Every size of step is kept on both ranks, and proven on both."""
    path = request.getfixturevalue(model)
    expected = expected_of(path)
    ranks = ask_ranks(path)

    for found in ranks:
        assert found["remark"] == "2 ranks share memory"
        assert found["rounds"] == [expected, expected, expected * 2]
        assert set(found["kept"]) >= {1, 2, 3, 4} and not found["given_up"]
        assert all(proven and calls > 10 for calls, _, proven in found["kept"].values())


def test_a_hook_on_one_rank_leaves_no_rank_waiting(tiny_llama):
    """The ranks go on together: what was proven is used by the others, what is new is kept by none."""
    expected = expected_of(tiny_llama)
    ranks = ask_ranks(tiny_llama, trouble="hook")

    assert [found["rounds"] for found in ranks] == [[expected, expected, expected * 2]] * 2
    assert [found["given_up"] for found in ranks] == [True, True]


def test_a_server_says_how_its_ranks_meet(tiny_llama):
    """`explain` asks it; with the plugin disabled, torch carries the sums, and the tokens are the same."""
    from plugin_packages import run_graftlm
    from server import Server

    answers = []
    for flags, remark in (
        ((), "2 ranks share memory"),
        (("--disable-plugin", "communicators=shared_memory"), "torch"),
    ):
        with Server([str(tiny_llama), "-tp", "2", *flags]) as server:
            body = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
            answer = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=200)
            answers.append(answer.json()["choices"])
            done = run_graftlm("plugins", "explain", "communicator", "--url", server.base_url)
        assert done.returncode == 0 and remark in done.stdout, done.stdout + done.stderr
    assert answers[0] == answers[1]
