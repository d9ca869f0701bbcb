from __future__ import annotations

import sys

import pytest

from graftlm.config.errors import InvalidOption
from graftlm.engine.class_paths import check_class_path

SOURCE = """
from torch import nn as network
raise RuntimeError("imported")
class Mine: ...
try:
    from fast import Maybe
except ImportError:
    Maybe = None
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose modules must not be imported."""
    folder = tmp_path / "acme_platform"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "worker.py").write_text(SOURCE)
    (folder / "lazy.py").write_text("def __getattr__(name): return name")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    "path",
    [
        "acme_platform.inner.worker:Mine",
        "acme_platform.inner.worker.Mine",
        "acme_platform.inner.worker:Maybe",
        "acme_platform.inner.worker:network.Module",
        "acme_platform.lazy:Anything",
    ],
)
def test_a_class_that_exists_is_found_without_importing_it(package, path):
    """The front end learns that a worker class is there, and pays for no import of torch."""
    check_class_path("--worker-cls", path)

    assert "acme_platform" not in sys.modules


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("acme_platform.inner.worker:Mime", "did you mean acme_platform.inner.worker:Mine"),
        ("acme_platform.inner.wroker:Mine", "did you mean acme_platform.inner.worker"),
        ("acme_plattform.inner.worker:Mine", "no package 'acme_plattform' is installed"),
        ("acme_platform:", "write it as module:Class"),
        ("Mine", "write it as module:Class"),
    ],
)
def test_a_misspelt_path_is_refused_with_the_nearest(package, path, part):
    """The start is refused in the front end, not three processes later."""
    with pytest.raises(InvalidOption) as caught:
        check_class_path("--worker-cls", path)

    assert part in str(caught.value)
    assert path in str(caught.value)
