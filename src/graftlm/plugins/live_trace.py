"""Writes a process's ledger, while it is written, to a file that several processes share; reads none of it.

Each event is one line of JSON and one `write`, so that lines of different processes never mix.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from graftlm.plugins.ledger import LedgerEvent

logger = logging.getLogger(__name__)


class TraceLine(msgspec.Struct, kw_only=True):
    """One event as it stands in the file, with the process it happened in."""

    process: str
    pid: int
    event: LedgerEvent


class LiveTrace:
    """A ledger's sink: appends to `path`, which is made if need be; OSError where it cannot be written."""

    def __init__(self, path: str | Path, *, process: str) -> None:
        self._process = process
        self._path = path
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, event: LedgerEvent) -> None:
        if self._file is None:
            return
        line = msgspec.json.encode(TraceLine(process=self._process, pid=os.getpid(), event=event))
        try:
            os.write(self._file, line + b"\n")
        except OSError as error:  # a full disk must not end the server
            self._file = None
            logger.warning("trace_stopped file=%s problem=%s", self._path, error)


def read_line(line: str | bytes) -> TraceLine:
    """Decode one line; msgspec.MsgspecError if it is none."""
    return msgspec.json.decode(line, type=TraceLine)
