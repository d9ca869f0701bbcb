"""Engines whose decode steps are kept, and requests for steps of several sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from graftlm_kernels.capture import StepCapture

sys.path.append(str(Path(__file__).parents[1] / "worker"))


def make_engine(path: Path, **options: Any) -> Any:
    from worker_runs import Engine

    return Engine(path, dtype="float32", **options)


def requests(prefix: str = "r", *, count: int = 4) -> list[Any]:
    """Requests of different lengths, so that steps of several sizes occur more than twice."""
    from worker_runs import greedy

    prompts = [[(7 * i + j) % 90 + 3 for j in range(5 + 20 * i)] for i in range(count)]
    return [greedy(f"{prefix}{i}", prompt, max_tokens=6 + 4 * i) for i, prompt in enumerate(prompts)]


def capture_of(engine: Any, *, greedy: bool = True) -> StepCapture:
    runner = engine.worker.model_runner
    capture = runner._greedy if greedy else runner._forward
    assert isinstance(capture, StepCapture)
    return capture


def never_keep(engine: Any) -> Any:
    runner = engine.worker.model_runner
    runner._forward, runner._greedy = engine.worker.model, None
    return engine
