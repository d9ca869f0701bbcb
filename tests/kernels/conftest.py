"""Kernel tests run for each instruction set of this machine; without graftlm-kernels they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("graftlm_kernels") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str | None:
    return (
        "graftlm-kernels is not installed: tests/kernels is left out"
        if find_spec("graftlm_kernels") is None
        else None
    )


@pytest.fixture(params=["avx512", "avx2", "generic"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn, by its name."""
    from graftlm_kernels import _native

    try:
        _native.use_path(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield request.param
    _native.use_path("")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Two threads, so that work is shared even on the smallest machine."""
    from graftlm_kernels import _native

    before = _native.num_threads()
    _native.set_num_threads(2)
    yield
    _native.set_num_threads(before)
