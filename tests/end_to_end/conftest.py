"""Checkpoints and servers that several end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live import LiveServer


@pytest.fixture(scope="session")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a context of 32,768 tokens, whose prefill takes seconds."""
    from checkpoints import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("long") / "llama", max_position_embeddings=32_768)


@pytest.fixture(scope="session")
def tiny_server(tiny_llama: Path) -> Iterator[LiveServer]:
    """A server of the tiny Llama that must outlive every test that uses it."""
    with LiveServer(str(tiny_llama)) as server:
        yield server

    assert server.code == 0
