"""The example packages as wheels, and folders to install them into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import EXAMPLES, Site, build_wheels
from point_server import PACKAGES


@pytest.fixture(scope="session")
def example_wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels of the example packages, by the name of their folder."""
    built = build_wheels([EXAMPLES / name for name in PACKAGES], tmp_path_factory.mktemp("examples"))
    return dict(zip(PACKAGES, built, strict=True))


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
