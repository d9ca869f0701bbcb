"""Finds every installed plugin from metadata alone; imports none of them and chooses nothing.

It walks the distributions itself: `entry_points()` hides a second copy of a distribution, keeps the order of the
file system, and lets a stale egg-info folder win over the installed metadata.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from graftlm.plugins.installed import Installed
from graftlm.plugins.manifest import MANIFEST, Manifest, PluginTable, Setting, read_manifest
from graftlm.plugins.order import unbound_names
from graftlm.plugins.plugin import BUILT_IN_DISTRIBUTIONS, Plugin, normalized
from graftlm.plugins.points import ExtensionPoint
from graftlm.plugins.spelling import nearest

logger = logging.getLogger(__name__)

_LONGEST_NAME = 128
#: What stands between names in the flags that take them.
_SEPARATORS = ",:="


class Shadow(msgspec.Struct, frozen=True):
    """A second copy of a distribution, whose plugins are not used; `differs` when it would have others."""

    distribution: str
    version: str
    location: str
    used_version: str
    used_location: str
    differs: bool


class UnknownGroup(msgspec.Struct, frozen=True):
    """An entry-point group with our prefix that no extension point has: most likely a slip.

    `entries` are name and value of what stands in it, and takes no part.
    """

    group: str
    distribution: str
    hint: str
    version: str = ""
    entries: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """Why nothing in it takes part."""
        return f"no extension point has the group {self.group!r}" + (f"; {self.hint}" if self.hint else "")


class Foreign(msgspec.Struct, frozen=True):
    """A distribution that publishes plugins for vLLM, and none for this engine."""

    distribution: str
    version: str
    groups: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why nothing of it takes part, and where its author reads on."""
        return (
            f"{self.distribution} {self.version} publishes {', '.join(self.groups)}; graftlm reads graftlm.*: see "
            "docs/plugins/from-vllm.md"
        )


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Everything found, in a fixed order: by point, distribution and name."""

    plugins: tuple[Plugin, ...] = ()
    settings: dict[str, dict[str, Setting]] = {}
    choices: dict[str, dict[str, list[str]]] = {}
    """Distribution → flag → names that its code says it will register."""
    shadows: tuple[Shadow, ...] = ()
    unknown_groups: tuple[UnknownGroup, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    notes: dict[str, list[str]] = {}
    """Identity of a plugin → what is odd about it, and no error."""
    searched: int = 0
    ms: float = 0.0


def discover(points: Iterable[ExtensionPoint[Any]]) -> Discovery:
    """Read the metadata of all distributions on sys.path."""
    started = time.perf_counter()
    by_group = {point.group: point for point in points}
    copies: dict[str, list[Installed]] = {}
    searched = 0
    for order, dist in enumerate(metadata.distributions()):
        found = Installed(dist, order)
        searched += 1
        if found.key:
            copies.setdefault(found.key, []).append(found)
    plugins: list[Plugin] = []
    settings: dict[str, dict[str, Setting]] = {}
    choices: dict[str, dict[str, list[str]]] = {}
    shadows: list[Shadow] = []
    unknown: list[UnknownGroup] = []
    foreign: list[Foreign] = []
    for key in sorted(copies):
        if not any(copy.entries for copy in copies[key]):
            foreign.extend(_foreign(copies[key]))
            continue
        used, *others = _distinct(copies[key])
        shadows.extend(_shadow(used, other) for other in others)
        own, declared = _read(used, by_group)
        plugins.extend(own)
        if declared.settings:
            settings[used.name] = declared.settings
        if declared.choices and not all(plugin.refused for plugin in own):
            choices[used.name] = declared.choices
        unknown.extend(_unknown(used, by_group))
    plugins.sort(key=lambda p: (p.point, normalized(p.distribution), p.name, p.value))
    return Discovery(
        plugins=tuple(plugins),
        settings=settings,
        choices=choices,
        shadows=tuple(shadows),
        unknown_groups=tuple(unknown),
        foreign=tuple(foreign),
        notes=unbound_names(plugins),
        searched=searched,
        ms=(time.perf_counter() - started) * 1000,
    )


def _distinct(copies: list[Installed]) -> list[Installed]:
    """Put the copy that counts first: installed metadata before an egg-info folder, then the order of sys.path."""
    ordered = sorted(copies, key=lambda c: (c.is_egg, c.order))
    seen: dict[Path, Installed] = {}
    for copy in ordered:
        seen.setdefault(copy.location.resolve(), copy)
    return list(seen.values())


def _foreign(copies: list[Installed]) -> Iterator[Foreign]:
    """Yield what a distribution without plugins of ours has for vLLM; vLLM's own are nobody's surprise."""
    used = next((copy for copy in copies if copy.foreign), None)
    if used is not None and used.key != "vllm":
        groups, names = {e.group for e in used.foreign}, {e.name for e in used.foreign}
        yield Foreign(used.name, used.version, tuple(sorted(groups)), tuple(sorted(names)))


def _shadow(used: Installed, other: Installed) -> Shadow:
    # What building the engine's own source left beside it, however old, is not a second engine.
    own_leftover = other.is_egg and not used.is_egg and normalized(used.name) in BUILT_IN_DISTRIBUTIONS
    shadow = Shadow(
        used.name,
        other.version,
        str(other.location),
        used.version,
        str(used.location),
        differs=not own_leftover and (used.entries != other.entries or used.version != other.version),
    )
    if shadow.differs:
        logger.warning(
            "plugin_distribution_shadowed distribution=%s version=%s at=%s used=%s used_version=%s cure=%r",
            shadow.distribution,
            shadow.version,
            shadow.location,
            shadow.used_location,
            shadow.used_version,
            "install it again, or remove the folder" if other.is_egg else "uninstall one of the two",
        )
    return shadow


def _read(found: Installed, by_group: dict[str, ExtensionPoint[Any]]) -> tuple[list[Plugin], Manifest]:
    """Return the plugins and the manifest of one distribution."""
    name = found.name
    entries = sorted((e for e in found.entries if e.group in by_group), key=lambda e: (e.group, e.name, e.value))
    packages = sorted({e.value.partition(":")[0].partition(".")[0].strip() for e in entries})
    built_in = normalized(name) in BUILT_IN_DISTRIBUTIONS
    manifest, refused = (Manifest(), found.damage) if built_in or found.damage else read_manifest(packages)
    refused = refused or _stray_table(manifest, entries, by_group)
    plugins = []
    for entry in entries:
        point = by_group[entry.group]
        table = manifest.plugin.get(f"{point.name}={entry.name}") or manifest.plugin.get(entry.name, PluginTable())
        plugin = Plugin(
            point=point.name,
            name=entry.name,
            value=entry.value,
            distribution=name,
            version=found.version,
            key=point.key,
            opt_in=point.opt_in,
            built_in=built_in,
            roles=tuple(sorted(table.roles or point.roles)),
            before=tuple(table.before),
            after=tuple(table.after),
            replaces=tuple(table.replaces),
        )
        reason = refused or _wrong_name(entry.name) or _wrong_table(plugin, point)
        plugins.append(msgspec.structs.replace(plugin, refused=reason) if reason else plugin)
    return plugins, manifest


def _wrong_name(name: str) -> str:
    """Say why no flag could name a plugin that is called so, or ""."""
    if name.isprintable() and 0 < len(name) <= _LONGEST_NAME and not set(name) & set(_SEPARATORS):
        return ""
    return (
        f"it is called {name[:_LONGEST_NAME]!r}; a name has 1 to {_LONGEST_NAME} printable characters, "
        f"none of them one of {' '.join(_SEPARATORS)}"
    )


def _wrong_table(plugin: Plugin, point: ExtensionPoint[Any]) -> str:
    """Say what a [plugin.NAME] table asks for that this plugin cannot have, or ""."""
    place = f"its {MANIFEST}, [plugin.{plugin.name}]"
    outside = [role for role in plugin.roles if role not in point.roles]
    if outside:
        return f"{place} asks for role {outside[0]!r}, which {point.name} does not have"
    for key, names in (("before", plugin.before), ("after", plugin.after)):
        if oneself := [name for name in names if plugin.answers_to(name)]:
            return (
                f"{place} {key} = [{oneself[0]!r}] names the plugin itself; name another plugin "
                "(distribution:NAME where it has the same name), or take it out"
            )
    return ""


def _stray_table(
    manifest: Manifest, entries: list[metadata.EntryPoint], by_group: dict[str, ExtensionPoint[Any]]
) -> str:
    """Say which [plugin.NAME] table has no entry point of that name, or ""."""
    names = {e.name for e in entries} | {f"{by_group[e.group].name}={e.name}" for e in entries}
    stray = sorted(set(manifest.plugin) - names)
    if not stray:
        return ""
    cure = nearest(stray[0], names) or f"its entry points are {', '.join(sorted(e.name for e in entries))}"
    return f"its manifest has a table [plugin.{stray[0]}], and no entry point has that name; {cure}"


def _unknown(found: Installed, by_group: dict[str, ExtensionPoint[Any]]) -> list[UnknownGroup]:
    name = found.name
    groups = sorted({e.group for e in found.entries} - set(by_group))
    slips = [
        UnknownGroup(
            group,
            name,
            nearest(group, by_group),
            found.version,
            tuple(sorted((e.name, e.value) for e in found.entries if e.group == group)),
        )
        for group in groups
    ]
    for slip in slips:
        logger.warning(
            "plugin_group_unknown group=%s distribution=%s: no extension point has this name; %s",
            slip.group,
            slip.distribution,
            slip.hint or "its plugins are not used",
        )
    return slips
