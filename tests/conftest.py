"""Fixtures that all floors share: checkpoints, the demo model, and a clean environment."""

from __future__ import annotations

import os
import tempfile

# A warm parent of the developer's is not to be taken from; tests of warm parents name a folder of their own.
os.environ["GRAFTLM_PRELOAD_DIR"] = os.path.join(tempfile.gettempdir(), f"no-warm-parents-{os.getpid()}")  # noqa: PTH118
# Before numpy or torch are imported by any test: their thread pools read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or its making, says something of the machine only.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_NOT_OURS = ("GRAFTLM_CACHE", "GRAFTLM_DEMO_FILE", "GRAFTLM_PRELOAD_DIR")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's GRAFTLM_* settings, except those that say where the demo model lies."""
    for name in [name for name in os.environ if name.startswith("GRAFTLM_") and name not in _NOT_OURS]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def leave_no_plugin_host_behind() -> Iterator[None]:
    """A test that bootstraps this process does not change the tests after it."""
    from graftlm.plugins.current import find_host, hold_host

    before = find_host()
    yield
    hold_host(before)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama checkpoint of two layers, with a byte-level tokenizer and a chat template."""
    from checkpoints import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random OPT checkpoint of two layers, with a byte-level tokenizer and a chat template."""
    from checkpoints import make_tiny_opt

    return make_tiny_opt(tmp_path_factory.mktemp("tiny") / "opt")


@pytest.fixture(scope="session")
def demo_path() -> Path:
    """The demo model's file: GRAFTLM_DEMO_FILE, else the cache, else fetched now, as `serve demo` does."""
    from graftlm.models.sources.demo import DemoSource

    return DemoSource().fetch("demo", revision=None, progress=False)


@pytest.fixture
def graftlm_server() -> Iterator[Callable[..., object]]:
    """Start servers that end with the test: `graftlm_server("MODEL", "--flag", env={…})` returns one, ready."""
    from server import Server

    servers: list[Server] = []

    def start(*args: str, **options: object) -> Server:
        servers.append(Server(list(args), **options))  # type: ignore[arg-type]
        return servers[-1].start()

    yield start

    for server in servers:
        server.stop()
