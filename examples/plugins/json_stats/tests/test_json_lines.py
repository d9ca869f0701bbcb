"""The stat logger by itself; the engine's own tests run it in a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graftlm_json_stats import JsonLines

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.stats import RequestStats, StepStats

FINISHED = RequestStats(
    request_id="r1", finish_reason="stop", num_prompt_tokens=3, num_cached_tokens=0, num_output_tokens=5,
    e2e_latency_s=0.5,
)  # fmt: skip


@pytest.mark.parametrize(("steps", "kinds"), [(False, ["request"]), (True, ["step", "request"])])
def test_a_line_for_each_request_and_on_wish_for_each_step(tmp_path: Path, steps: bool, kinds: list[str]) -> None:
    """Each line is an object of its own that says what it is about."""
    place = tmp_path / "stats.jsonl"
    stat_logger = JsonLines(EngineConfig(), path=str(place), steps=steps)
    stat_logger.record(StepStats(num_running=1, num_generation_tokens=1), [FINISHED])
    stat_logger.close()

    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert [line["kind"] for line in lines] == kinds
    assert lines[-1]["request_id"] == "r1" and lines[-1]["num_output_tokens"] == 5
