"""A progress bar of bytes, fed with counts.

It does not know what is being fetched; without a terminal it draws nothing.
"""

from __future__ import annotations

import sys
from types import TracebackType


class ProgressBar:
    """Draws on stderr while it is entered, if `enabled` and stderr is a terminal."""

    def __init__(self, description: str, *, enabled: bool) -> None:
        self.description = description
        self.enabled = enabled and sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        if self.enabled:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
            self._task = self._progress.add_task(self.description, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            self._progress.stop()

    def update(self, done: int, total: int) -> None:
        if self.enabled:
            self._progress.update(self._task, completed=done, total=total)
