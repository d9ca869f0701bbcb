"""Reads the small files of a checkpoint, with one error for every way in which they can be wrong.

It does not know what they say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graftlm.models.checkpoints.errors import BrokenCheckpoint

_CURE = "fetch or write it again"


def read_json_object(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """Return the file's JSON object, or an empty one if it is `optional` and not there; raises BrokenCheckpoint."""
    if optional and not file.is_file():
        return {}
    text = read_text(file)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BrokenCheckpoint(file, problem=f"it is no JSON ({error})", cure=_CURE) from error
    except RecursionError as error:
        raise BrokenCheckpoint(file, problem="its JSON is nested too deep", cure=_CURE) from error
    if not isinstance(value, dict):
        raise BrokenCheckpoint(file, problem="it holds no JSON object", cure=_CURE)
    return value


def read_text(file: Path) -> str:
    """Return the file's text; raises BrokenCheckpoint."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise BrokenCheckpoint(file, problem=error.strerror or str(error), cure=_CURE) from error
    except UnicodeDecodeError as error:
        raise BrokenCheckpoint(file, problem=f"it is not UTF-8 (byte {error.start})", cure=_CURE) from error
