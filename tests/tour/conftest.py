"""Wheels of the plugin packages, built once, and folders to install them into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import DUMMY_MODEL, DUMMY_PLATFORM, Site, build_wheels

_WITNESS = Path(__file__).parent / "packages" / "tour_witness"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels of the two example packages and of the witness, by the name of their folder."""
    sources = [DUMMY_PLATFORM, DUMMY_MODEL, _WITNESS]
    built = build_wheels(sources, tmp_path_factory.mktemp("wheels"))
    return {source.name: wheel for source, wheel in zip(sources, built, strict=True)}


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def start_flags(request: pytest.FixtureRequest) -> list[str]:
    """How child processes are started: as it is, and as the user may have it."""
    return [] if request.param == "spawn" else ["--start-method", request.param]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder of installed packages."""
    return Site(tmp_path / "site")


@pytest.fixture(autouse=True, scope="module")
def no_settings_of_the_developer() -> Iterator[None]:
    """Hide GRAFTLM_* variables from servers that live as long as a module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GRAFTLM_")]:
            patch.delenv(name)
        yield
