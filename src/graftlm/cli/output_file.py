"""Files that a command writes at its end: one that cannot be written is refused at its beginning.

It does not know what is written.
"""

from __future__ import annotations

from pathlib import Path

from graftlm.config.errors import InvalidOption


def check_writable(flag: str, path: str) -> None:
    """Raise InvalidOption unless the file can be written; one that is not there is made, empty."""
    try:
        with Path(path).open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InvalidOption(
            flag, path, problem=f"it cannot be written ({error.strerror or error})", cure="name another file"
        ) from None
