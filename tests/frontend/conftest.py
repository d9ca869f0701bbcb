"""Clients of the HTTP tests wait as long as a busy machine may need."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import httpx
import pytest
from http_harness import PATIENCE_S


@pytest.fixture(scope="module", autouse=True)
def patient_clients() -> Iterator[None]:
    """`httpx.get` and `httpx.post` give up after five seconds unless told otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("get", "post"):
            patch.setattr(httpx, name, functools.partial(getattr(httpx, name), timeout=PATIENCE_S))
        yield
