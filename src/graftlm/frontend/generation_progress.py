"""A progress bar for offline generation: prompts done, and tokens each second."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REFRESH_S = 0.1


class GenerationProgress:
    """Shown on standard error; `show` None shows it on a terminal only. Costs next to nothing when hidden."""

    def __init__(self, total: int, *, show: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if show is None else show
        self._progress = Progress(
            TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(), console=Console(stderr=True), disable=not self._shown,
        )  # fmt: skip
        self._task = self._progress.add_task("generating", total=total, speed="")
        self._num_tokens = 0
        self._num_done = 0
        self._began = self._refreshed = time.monotonic()

    def __enter__(self) -> GenerationProgress:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._refresh(time.monotonic())
        self._progress.stop()

    def advance(self, *, num_tokens: int, done: bool) -> None:
        """Count tokens, and whether they ended a prompt's last choice."""
        if not self._shown:
            return
        self._num_tokens += num_tokens
        self._num_done += done
        now = time.monotonic()
        if now - self._refreshed > _REFRESH_S:
            self._refresh(now)

    def _refresh(self, now: float) -> None:
        self._refreshed = now
        speed = self._num_tokens / max(now - self._began, 1e-6)
        self._progress.update(self._task, completed=self._num_done, speed=f"{speed:.0f} tok/s")
