"""Starts peers in turn, round by round, sends each the same loads, and keeps every figure of every round.

Each round launches each peer anew, so that what differs between two launches is part of the spread; the order moves
on by one each round, so that nobody is always first. A peer that fails is told with its last words. It judges
nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from http.client import HTTPException

import msgspec
import psutil

from benchmarks.commands import say
from benchmarks.loads import FIRST_TOKEN, MEMORY, START_ROW, VOCABULARY, Figure, Load
from benchmarks.peer import Peer, RunningPeer
from graftlm.contracts.errors import GraftlmError

#: What a peer's failure looks like from outside; anything else is a bug of ours.
_FAILURES = (GraftlmError, OSError, subprocess.SubprocessError, psutil.Error, HTTPException)


class Failed(msgspec.Struct):
    """A row that a peer did not manage; fatal when there is nothing left to ask."""

    words: str
    fatal: bool


Outcome = dict[Figure, float] | Failed


class Results(msgspec.Struct):
    """Every figure of every round, by peer; a figure that failed is None. `failures` is peer → row → words."""

    figures: dict[str, dict[Figure, list[float | None]]]
    failures: dict[str, dict[str, str]]

    def keep(self, peer: str, row: str, outcome: Outcome, *, turn: int) -> None:
        """Keep what came of a row in a round; of failures the first words."""
        if isinstance(outcome, Failed):
            self.failures[peer].setdefault(row, outcome.words)
            return
        for figure, value in outcome.items():
            column = self.figures[peer].setdefault(figure, [])
            column += [None] * (turn - len(column)) + [value]

    def values(self, peer: str, figure: Figure) -> list[float]:
        return [value for value in self.figures[peer].get(figure, []) if value is not None]

    def all_figures(self) -> list[Figure]:
        """All figures that any peer has, in the order of the loads."""
        return list(dict.fromkeys(figure for rows in self.figures.values() for figure in rows))

    def ratios(self, peer: str, other: str, figure: Figure) -> list[float]:
        """Return, round by round, how many times better `peer` is than `other`; a round needs both, above 0."""
        pairs = zip(self.figures[peer].get(figure, []), self.figures[other].get(figure, []), strict=False)
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        better = [(a, b) if figure.more_is_better else (b, a) for a, b in both]
        return [more / less for more, less in better if more > 0 and less > 0]


def measure_rounds(
    peers: Sequence[Peer],
    loads: Sequence[Load],
    *,
    rounds: int,
    start_row: bool = True,
    vocab_size: int = VOCABULARY,
    all_needed: bool = False,
) -> Results:
    """Measure all peers `rounds` times. One that cannot be started, or dies, is not tried again.

    Where `all_needed`, the first failure ends it: what the others would do is of no use then.
    """
    results = Results({peer.name: {} for peer in peers}, {peer.name: {} for peer in peers})
    given_up: set[str] = set()
    for turn in range(rounds):
        for peer in [peer for peer in turned(peers, turn) if peer.name not in given_up]:
            label = (
                f"round {turn + 1} of {rounds}, {peer.name}"  # on every line: rounds take hours, and scroll away
            )
            say(f"{label}: starting")
            for row, outcome in one_round(peer, loads, seed=1000 * turn, vocab_size=vocab_size):
                say(f"{label}, {row}: {_in_short(outcome)}")
                if row != START_ROW or start_row or isinstance(outcome, Failed):
                    results.keep(peer.name, row, outcome, turn=turn)
                if isinstance(outcome, Failed) and all_needed:
                    return results
                if isinstance(outcome, Failed) and outcome.fatal:
                    given_up.add(peer.name)
    return results


def _in_short(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return f"failed: {outcome.words.splitlines()[0]}"
    return " · ".join(f"{value:.4g}" for value in outcome.values())


def one_round(peer: Peer, loads: Sequence[Load], *, seed: int, vocab_size: int) -> Iterator[tuple[str, Outcome]]:
    """Launch a peer, yield each row with what came of it, and end the peer."""
    try:
        running = peer.start()
    except _FAILURES as error:
        yield START_ROW, Failed(str(error), fatal=True)
        return
    with running:
        yield START_ROW, {FIRST_TOKEN: running.first_token_s, MEMORY: running.memory_mib}
        for place, load in enumerate(loads):
            try:
                found = measure_load(running, load, seed=seed + 10 * place, vocab_size=vocab_size)
            except _FAILURES as error:
                dead = not running.alive()
                words = f"{error}; its last words:\n{running.last_words()}"
                yield load.key, Failed(words, fatal=dead)
                if dead:
                    return
            else:
                yield load.key, found


def measure_load(running: RunningPeer, load: Load, *, seed: int, vocab_size: int) -> dict[Figure, float]:
    """Warm up, send the load, return its figures."""
    warm_up = load.warm_up()
    running.send(warm_up.prompts(seed=seed + 1, vocab_size=vocab_size), at_once=load.at_once)
    exchanges, seconds = running.send(load.prompts(seed=seed, vocab_size=vocab_size), at_once=load.at_once)
    return load.figures(exchanges, seconds)


def turned(peers: Sequence[Peer], turn: int) -> list[Peer]:
    """Return the peers in the order of a round."""
    place = turn % len(peers) if peers else 0
    return [*peers[place:], *peers[:place]]
