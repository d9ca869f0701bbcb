"""Puts plugins in their declared order; knows only names and edges."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from graftlm.plugins.errors import PluginCycle
from graftlm.plugins.plugin import Plugin, normalized
from graftlm.plugins.spelling import nearest


def in_order(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Sort by the `before`/`after` declarations, then by distribution and name; a circle is a PluginCycle.

    Edges bind plugins of the same point; a name that is not among them binds nothing.
    """
    rank = sorted(plugins, key=lambda p: (p.point, normalized(p.distribution), p.name))
    followers: dict[int, set[int]] = {i: set() for i in range(len(rank))}
    for i, plugin in enumerate(rank):
        for j, other in enumerate(rank):
            if i == j or plugin.point != other.point:
                continue
            if any(other.answers_to(name) for name in plugin.before):
                followers[i].add(j)
            if any(other.answers_to(name) for name in plugin.after):
                followers[j].add(i)
    waiting = {i: sum(i in f for f in followers.values()) for i in followers}
    free = [i for i, count in waiting.items() if count == 0]
    heapq.heapify(free)
    ordered: list[Plugin] = []
    while free:
        i = heapq.heappop(free)
        ordered.append(rank[i])
        del waiting[i]
        for j in followers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(free, j)
    if waiting:
        raise PluginCycle([rank[i].label for i in _circle(followers, set(waiting))])
    return ordered


def unbound_names(plugins: Sequence[Plugin]) -> dict[str, list[str]]:
    """Return plugin identity -> a note on each name in its `before` and `after` that means nobody here.

    That is no error: the other plugin may rightly be absent.
    """
    notes: dict[str, list[str]] = {}
    for plugin in plugins:
        here = [p for p in plugins if p.point == plugin.point and p is not plugin]
        for key, names in (("before", plugin.before), ("after", plugin.after)):
            for name in names:
                if not any(p.answers_to(name) for p in (plugin, *here)):
                    notes.setdefault(plugin.identity, []).append(_note(plugin, key, name, plugins))
    return notes


def _note(plugin: Plugin, key: str, name: str, plugins: Sequence[Plugin]) -> str:
    said = f"{key} = [{name!r}] binds nothing: no plugin of {plugin.point} that is installed is called so"
    if elsewhere := next((p for p in plugins if p.answers_to(name)), None):
        return f"{said}, and {elsewhere.label} is one of {elsewhere.point}; order binds plugins of one point"
    here = [p for p in plugins if p.point == plugin.point and p is not plugin]
    cure = nearest(name, [spelling for p in here for spelling in (p.name, p.label)])
    return f"{said}{'; ' if cure else ''}{cure}"


def _circle(followers: dict[int, set[int]], among: set[int]) -> list[int]:
    """Return one circle, its first member repeated at the end."""
    # Every plugin still waiting has a predecessor that waits too: walking backwards must come round.
    path = [min(among)]
    while True:
        before = min(i for i in among if path[-1] in followers[i])
        if before in path:
            return [before, *reversed(path[path.index(before) :])]
        path.append(before)
