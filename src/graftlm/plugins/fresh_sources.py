"""Keeps the bytecode of sources that are just being edited from being written, lest the next edit be overlooked.

Python takes a cached file for current when the source has the size noted in it, and the time in whole seconds. A
second edit of the same length within the second would run as the first. It does not know what is imported.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Iterator

from graftlm.plugins.plugin import BUILT_IN_PACKAGES

_FRESH_S = 2.0
#: Of larger packages only so many files are looked at: nobody edits one between two starts.
_MOST_FILES = 1000

_looked_at: set[str] = set(BUILT_IN_PACKAGES)


def beware_of_fresh_sources(module: str) -> None:
    """Write no bytecode in this process any more if the package of `module` was edited within two seconds."""
    package = module.partition(".")[0]
    if package in _looked_at or package in sys.modules or sys.dont_write_bytecode:
        return
    _looked_at.add(package)
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # whoever imports it will say what is wrong
        return
    since = time.time() - _FRESH_S
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    files = [spec.origin] if spec is not None and spec.origin is not None else []
    for file in itertools.islice(itertools.chain(files, _sources(places)), _MOST_FILES):
        if _is_newer(file, since):
            sys.dont_write_bytecode = True
            return


def _sources(places: list[str]) -> Iterator[str]:
    for place in places:
        for folder, _, names in os.walk(place):
            yield from (f"{folder}/{name}" for name in names if name.endswith(".py"))


def _is_newer(file: str, since: float) -> bool:
    try:
        return os.stat(file).st_mtime > since  # noqa: PTH116 - a thousand of them, perhaps
    except OSError:
        return False
