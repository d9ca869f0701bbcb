"""Class paths, version ranges, and the names that the package exports."""

from __future__ import annotations

import pytest

import graftlm.plugins
from graftlm.plugins import UnresolvedPath, resolve_class_path
from graftlm.plugins.versions import in_range


def test_both_spellings_of_a_class_path_resolve() -> None:
    """module:Class is ours, module.Class is accepted."""
    from graftlm.contracts.platform import Platform

    assert resolve_class_path("graftlm.contracts.platform:Platform") is Platform
    assert resolve_class_path("graftlm.contracts.platform.Platform") is Platform


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("auto", "does not name a module"),
        ("", "does not name a module"),
        ("graftlm.nowhere:Class", "no module graftlm.nowhere"),
        ("graftlm.version:Nothing", "graftlm.version has no Nothing"),
        ("a b:c", "does not name a module"),
    ],
)
def test_a_wrong_path_names_flag_value_problem_and_spelling(path: str, problem: str) -> None:
    """The error is about the flag, never an ImportError from somewhere."""
    with pytest.raises(UnresolvedPath, match=problem) as caught:
        resolve_class_path(path, what="--worker-cls")

    assert "--worker-cls" in str(caught.value)
    assert "module:Class" in str(caught.value)


def test_a_class_object_is_refused() -> None:
    """Only a path can travel to another process."""
    with pytest.raises(UnresolvedPath, match="not a string"):
        resolve_class_path(int)  # type: ignore[arg-type]


def test_an_import_error_inside_the_module_is_not_disguised(site) -> None:
    """A module that lacks a dependency says which one."""
    site.add("acme", {}, source="import not_there_at_all")

    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        resolve_class_path("acme:Net")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (">=1.0,<2", True),
        ("1.0", True),
        ("1", True),
        (">1.0", False),
        ("==1.0.0", True),
        ("!=1", False),
        ("<1.0.1", True),
    ],
)
def test_version_ranges(wanted: str, fits: bool) -> None:
    """Numbers compare as numbers, missing ones as zero."""
    assert in_range("1.0", wanted) is fits


def test_a_range_that_is_none_says_how_to_write_one() -> None:
    """~= and words are not understood, and say so."""
    with pytest.raises(ValueError, match=r">=1.0,<2"):
        in_range("1.0", "~=1.0")


def test_every_exported_name_exists() -> None:
    """`__all__` is what a plugin may import."""
    assert [n for n in graftlm.plugins.__all__ if not hasattr(graftlm.plugins, n)] == []
