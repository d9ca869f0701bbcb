"""Folders of warm parents, and parents that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from light_parents import FUNCTIONS, be_patient
from plugin_packages import Site
from warm_servers import Warm

from graftlm.processes.warm.place import make_private


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The private folder of this test."""
    place = tmp_path / "warm"
    be_patient(monkeypatch)
    monkeypatch.setenv("GRAFTLM_PRELOAD_DIR", str(place))
    monkeypatch.syspath_prepend(str(FUNCTIONS))
    make_private(place)
    return place


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A folder on the path of every process, in which nothing is installed yet."""
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path, site: Site) -> Iterator[Warm]:
    """A warm parent of the tiny Llama, shared by the module's tests."""
    found = Warm(tmp_path_factory.mktemp("warm"), site.environment)
    found.preload(str(tiny_llama))
    yield found
    found.stop()
