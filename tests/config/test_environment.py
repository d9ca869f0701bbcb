from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import graftlm
from graftlm.config import environment


@pytest.fixture(autouse=True)
def _thawed(monkeypatch):
    monkeypatch.setattr(environment, "_frozen", None)


def test_a_frozen_environment_does_not_see_later_changes(monkeypatch):
    """What a process read while it started is what it keeps."""
    monkeypatch.setenv("GRAFTLM_PLATFORM", "cpu")
    environment.freeze()

    monkeypatch.setenv("GRAFTLM_PLATFORM", "dummy")
    environment.freeze()

    assert environment.get("GRAFTLM_PLATFORM") == "cpu"


def test_an_empty_variable_counts_as_unset(monkeypatch):
    """`GRAFTLM_DEBUG= graftlm …` means nothing was said."""
    monkeypatch.setenv("GRAFTLM_DEBUG", "")

    assert environment.get("GRAFTLM_DEBUG") == "0"


def test_unknown_variables_are_named_with_the_nearest(monkeypatch, caplog):
    """A typing error in a variable must be seen."""
    monkeypatch.setenv("GRAFTLM_PLUGIN", "x")

    with caplog.at_level(logging.WARNING):
        environment.warn_unknown()

    assert "unknown environment variable GRAFTLM_PLUGIN: did you mean GRAFTLM_PLUGINS" in caplog.text


def test_reading_a_variable_that_is_not_in_the_table_is_a_bug():
    """Every variable has its line of help."""
    with pytest.raises(environment.UnknownVariable):
        environment.get("GRAFTLM_NEW")


def test_every_variable_named_in_the_source_is_in_the_table():
    """Nobody reads a variable behind the table's back."""
    root = Path(graftlm.__file__).parent
    named = {
        (name, path.name)
        for path in root.rglob("*.py")
        for name in re.findall(r"\bGRAFTLM_[A-Z_]*[A-Z]\b", path.read_text())
    }

    assert {pair for pair in named if pair[0] not in environment.VARIABLES} == set()
