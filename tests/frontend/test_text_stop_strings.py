"""Stop strings, against searching the whole text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from graftlm.frontend.stop_strings import StopStrings

LETTERS = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


def expected(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Find the stop string that is complete first; of those, the one that begins first."""
    found = [(end, end - len(s), s) for s in stops for end in range(len(text) + 1) if text[:end].endswith(s)]
    if not found:
        return text, None
    end, start, stop = min(found)
    return text[: end if include else start], stop


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


@given(LETTERS, STOPS, st.lists(st.integers(0, 100), max_size=8), st.booleans())
def test_pieces_of_any_size_end_where_the_whole_text_ends(
    text: str, stops: list[str], places: list[int], include: bool
) -> None:
    """However the text is cut into pieces, the output ends as a search in the whole text says."""
    matcher = StopStrings(stops, include_in_output=include)
    shown = ""
    for piece in cut(text, places):
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            break
    if matcher.matched is None:
        shown += matcher.finish()

    assert (shown, matcher.matched) == expected(text, stops, include=include)


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    """What is not shown yet is the longest end of the text that begins a stop string."""
    matcher = StopStrings(stops)
    shown = ""
    for position, char in enumerate(text, start=1):
        shown += matcher.feed(char)
        if matcher.matched is not None:
            break
        seen = text[:position]
        ends = [seen[-n:] for n in range(len(seen), 0, -1) if any(s.startswith(seen[-n:]) for s in stops)]
        assert seen == shown + (ends[0] if ends else "")


def test_of_two_ends_the_longer_stop_string_is_cut() -> None:
    """Two stop strings complete at the same character: nothing of either stays in the output."""
    matcher = StopStrings(["\nUser:", "User:"])

    assert matcher.feed("Hi\nUser: no") == "Hi"
    assert matcher.matched == "\nUser:"
