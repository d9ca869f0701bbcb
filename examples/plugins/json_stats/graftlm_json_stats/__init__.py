"""A stat logger that writes one JSON line for each finished request, and on wish one for each step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.contracts.stats import RequestStats, StatLogger, StepStats
from graftlm.plugins import plugin_logger, settings

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig


class JsonLines(StatLogger):
    """Runs in a thread of its own, so writing to a slow disk costs nobody a token."""

    def __init__(self, config: EngineConfig, *, path: str | None = None, steps: bool | None = None) -> None:
        """Without arguments, as the engine calls it, take both from the plugin's settings."""
        super().__init__(config)
        chosen = settings() if path is None or steps is None else {}
        self.steps = chosen["steps"] if steps is None else steps
        place = chosen["path"] if path is None else path
        self._file = Path(place).open("a", encoding="utf-8", buffering=1) if place else None  # noqa: SIM115

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        if step is not None and self.steps:
            self._write("step", msgspec.to_builtins(step))
        for request in finished:
            self._write("request", msgspec.to_builtins(request))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, "model": self.config.model.model, **facts})
        if self._file is None:
            plugin_logger().info(line)
        else:
            self._file.write(line + "\n")
