"""Writes down what happens to it, one JSON line each, into a file per process below $TOUR_RECORDS.

It imports no torch, so that it does not spoil what it observes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def write(what: str, **facts: object) -> None:
    """Append a line to this process's file."""
    line = json.dumps({"what": what, "pid": os.getpid(), **facts})
    with (Path(os.environ["TOUR_RECORDS"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line + "\n")


write("imported")
