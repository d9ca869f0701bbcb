"""Fixtures for tests of plugins: load it with `pytest_plugins = ["graftlm.testing.pytest_plugin"]`.

`pytest -p graftlm.testing.pytest_plugin --graftlm-conformance my-distribution` runs the suites of everything that
an installed distribution declares. It is the only module of the engine that imports pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graftlm.testing.engine import ScriptedEngineClient
from graftlm.testing.host import FakeDistribution
from graftlm.testing.host import plugin_host as hosted

#: The distributions that --graftlm-conformance names; `declared_suites` makes their suites.
requested: list[str] = []


@pytest.fixture
def plugin_host() -> Iterator[Callable[..., Any]]:
    """Bootstrap a host for this test: `plugin_host(FakeDistribution(…), platform="cpu", role="worker")`."""
    with contextlib.ExitStack() as stack:

        def start(*distributions: FakeDistribution | str, **options: Any) -> Any:
            return stack.enter_context(hosted(*distributions, **options))

        yield start


@pytest.fixture
def engine_client() -> ScriptedEngineClient:
    """An engine client that answers every request with the tokens 1, 2, 3."""
    return ScriptedEngineClient()


@pytest.fixture
def tiny_llama_checkpoint(tmp_path: Path) -> Path:
    """A random Llama checkpoint of two layers, without tokenizer."""
    from graftlm.testing.checkpoints import tiny_llama

    return tiny_llama().write(tmp_path / "tiny-llama")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("graftlm")
    group.addoption(
        "--graftlm-conformance", action="append", default=[], metavar="DISTRIBUTION",
        help="run the conformance suites of everything that this installed distribution declares (repeatable)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Collect the declared suites: beside what the command line names, or alone when it names nothing."""
    distributions = config.getoption("--graftlm-conformance")
    if not distributions:
        return
    declared_suites = Path(__file__).with_name("declared_suites.py")
    requested.extend(distributions)
    named = config.args if config.args_source is config.ArgsSource.ARGS else []
    config.args = [*named, str(declared_suites)]
