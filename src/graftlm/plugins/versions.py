"""Compares version numbers with ranges such as ">=1.0,<2"; knows only numbers and dots."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_OPERATORS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)?\s*(\d+(?:\.\d+)*)\s*")


def _numbers(version: str, width: int = 4) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in version.split("."))
    return numbers + (0,) * (width - len(numbers))


def in_range(version: str, wanted: str) -> bool:
    """Tell whether `version` satisfies every comma-separated clause; a bare number means that and newer."""
    for clause in wanted.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise ValueError(f"{wanted!r} is no version range; write it like '>=1.0,<2'")
        compare = _OPERATORS[match[1] or ">="]
        if not compare(_numbers(version), _numbers(match[2])):
            return False
    return True
