"""Near names and articles, as every error of the engine uses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plugin_packages import run_graftlm

import graftlm
from graftlm.plugins.spelling import counted, kind_of, nearest, nearest_names, with_article


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ZCFG", ["zcfg"]),
        ("zcfh", ["zcfg"]),
        ("TORCH_PAGD", ["torch_paged", "TORCH_PAGED"]),
        ("qqq", []),
    ],
)
def test_capitals_do_not_hide_the_name_that_was_meant(name, near) -> None:
    """Compared without regard to capitals, and answered in the spelling that is known."""
    known = ["zcfg", "ops", "TORCH_PAGED", "torch_paged"]

    assert sorted(nearest_names(name, known)) == sorted(near)
    assert bool(nearest(name, known)) == bool(near)


def test_what_differs_in_capitals_only_stands_alone() -> None:
    """It is surely meant; other near names would be noise."""
    assert nearest("Ops", ["ops", "ops2", "ops3"]) == "did you mean 'ops'?"


def test_words_have_their_article() -> None:
    """Errors say an int and a str."""
    assert [with_article(w) for w in ("int", "str", "Any", "dict")] == ["an int", "a str", "an Any", "a dict"]
    assert kind_of(3) == "an int"


def test_counted_things_agree_with_their_number() -> None:
    """One launch, no launches; words that end in a hiss take another syllable."""
    said = [counted(number, noun) for number in (0, 1, 2) for noun in ("launch", "process", "suite")]

    assert said[3:6] == ["1 launch", "1 process", "1 suite"]
    assert said[:3] + said[6:] == [f"{n} {noun}" for n in (0, 2) for noun in ("launches", "processes", "suites")]
    assert counted(12_345, "request", form=",") == "12,345 requests"


def test_words_for_many_are_made_in_one_place() -> None:
    """What a command prints of a number of things agrees with it: "1 suites" is written by hand."""
    source = Path(graftlm.__file__).parent
    by_hand = re.compile(
        r"\{len\([a-z_.]+\)\} (more )?(plugins|suites|checks|prompts|layers|objects|launches|tensors)\b"
    )
    found = [f"{p.name}: {m.group()}" for p in source.rglob("*.py") for m in by_hand.finditer(p.read_text())]

    assert found == []


def test_near_names_are_computed_in_one_place() -> None:
    """A second rule would forget the capitals again."""
    source = Path(graftlm.__file__).parent
    users = [p.name for p in source.rglob("*.py") if re.search(r"^\s*(import|from) difflib", p.read_text(), re.M)]

    assert users == ["spelling.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plugins", "list", "--plugins", "TPU"), "did you mean 'tpu'?"),
        (("plugins", "list", "--PLATFORM", "cpu"), "did you mean --platform"),
        (("plugins", "list", "--platform", "CPU"), "did you mean 'cpu'"),
        (("SERVE",), "did you mean serve?"),
    ],
)
def test_the_command_line_answers_capitals_with_the_name_that_was_meant(arguments, says) -> None:
    """Names of plugins, flags, platforms and commands alike."""
    done = run_graftlm(*arguments)

    assert done.returncode != 0
    assert says in done.stderr
