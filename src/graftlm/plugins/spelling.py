"""Helps errors to speak of names: which known ones are near a wrong one, and with which article; knows no name."""

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


def with_article(word: str) -> str:
    """Put "a" or "an" before a word: a str, an int."""
    return f"{'an' if word[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {word}"


def kind_of(value: object) -> str:
    """Say what an object is, by its type: "an int", "a function"."""
    return with_article(type(value).__name__)
