"""Runs one check of a conformance suite over something wrong, and returns what the suite says of it."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

from graftlm.testing.suite import ContractBroken, Suite


def broken(base: type[Suite], subject: str, check: str, **attributes: Any) -> str:
    """Run one check of the suite over the wrong thing and return its complaint, which must name the thing."""
    suite = type("WrongSuite", (base,), {"subject": subject, **attributes})
    with pytest.raises((ContractBroken, unittest.SkipTest)) as raised:
        getattr(suite(), check)()
    assert raised.type is ContractBroken, raised.value
    text = str(raised.value)
    assert text.startswith(f"{subject}: ") and " wants: " in text
    return text
