"""Helps errors to speak: which known names are near a wrong one, with which article, what an exception says.

It knows no name.
"""

from __future__ import annotations

from collections.abc import Iterable


def nearest_names(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return at most `most` of `known` that somebody who wrote `name` may have meant, the nearest first.

    Capitals count for nothing: what differs in them only is surely meant, and stands alone. `cutoff` is the least
    likeness, 0 to 1.
    """
    import difflib  # only an error needs it

    spellings: dict[str, list[str]] = {}
    for candidate in sorted(set(known)):
        spellings.setdefault(candidate.casefold(), []).append(candidate)
    if same := spellings.get(name.casefold()):
        return same[:most]
    close = difflib.get_close_matches(name.casefold(), spellings, n=most, cutoff=cutoff)
    return [spelling for folded in close for spelling in spellings[folded]][:most]


def nearest(name: str, known: Iterable[str]) -> str:
    """Build the "did you mean" half of a sentence, or an empty string."""
    close = nearest_names(name, known, cutoff=0.5)
    return f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def listing(names: Iterable[str], *, none: str) -> str:
    """Join names, the first twelve of many."""
    ordered = sorted(set(names))
    if not ordered:
        return none
    shown = ", ".join(ordered[:12])
    return shown + (f" and {len(ordered) - 12} more" if len(ordered) > 12 else "")


def hidden_last(file_name: str) -> tuple[bool, str]:
    """Sort the names of files so that those which begin with a dot, which are seldom meant, come last."""
    return file_name.startswith("."), file_name


def counted(number: int, noun: str, *, form: str = "") -> str:
    """Write a number of things: "1 launch", "2 launches"; `form` is how the number is written, as in `format`."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:{form}} {noun}"


#: Of one exception's text, in characters: it goes to the terminal, into tables and to other processes.
_LONGEST_TEXT = 2000


def error_text(error: BaseException) -> str:
    """Say an exception's type and text, whatever plugin code made of it: it may fail, be long, be no UTF-8."""
    try:
        text = str(error)
    except Exception as failure:  # a plugin's own __str__
        text = f"its text cannot be had, {type(failure).__name__} in __str__"
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} … ({counted(len(text) - _LONGEST_TEXT, 'more character')})"
    return f"{type(error).__name__}: {encodable(text)}"


def encodable(text: str) -> str:
    """Spell out what UTF-8 cannot hold, such as the parts of a file name in another encoding."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def with_article(word: str) -> str:
    """Put "a" or "an" before a word: a str, an int."""
    return f"{'an' if word[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {word}"


def kind_of(value: object) -> str:
    """Say what an object is, by its type: "an int", "a function"."""
    return with_article(type(value).__name__)
