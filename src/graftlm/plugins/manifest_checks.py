"""Says in one sentence what is wrong with a manifest: the key, its value, and what to write instead.

It checks the shape only, before anything is read from it; it decides nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graftlm.plugins.points import Role
from graftlm.plugins.spelling import kind_of, nearest, nearest_names

#: What a setting's `type` may be, and how a value of it is written.
SETTING_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
WRITTEN: dict[str, str] = {
    "str": "text", "int": "a whole number such as 8", "float": "a number such as 0.5", "bool": "true or false",
}  # fmt: skip

#: What NAME.KEY=VALUE cannot have in its key.
_SEPARATORS = ".= \t\n"

_TABLES = {
    "plugin": ("roles", "before", "after", "replaces"),
    "settings": ("type", "default", "help"),
}
_TOP = ("api", "plugin", "choices", "settings")
_LIST = 'a list of strings, such as ["name"]'


def problem_of(raw: Mapping[str, Any]) -> str:
    """Return what is wrong with the content of a manifest, or ""."""
    return next(_problems(raw), "")


def _problems(raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(raw, _TOP, place="")
    if not isinstance(api := raw.get("api", ""), str):
        yield f"api = {api!r} is {kind_of(api)}; write a range, such as '>=1.0,<2'"
    for name, heading in (("plugin", "[plugin.NAME]"), ("settings", "[settings.NAME]"), ("choices", "[choices]")):
        if not isinstance(tables := raw.get(name, {}), dict):
            yield f"{name} = {tables!r} is {kind_of(tables)}; write a table, {heading}"
            return
    for name, keys in _TABLES.items():
        for key, table in raw.get(name, {}).items():
            place = f"[{name}.{key}] "
            if not isinstance(table, dict):
                yield f"{name}.{key} = {table!r} is {kind_of(table)}; write a table, [{name}.{key}]"
                continue
            if name == "settings" and (not key or set(key) & set(_SEPARATORS)):
                yield f"{place}{key!r} cannot be given as NAME.KEY=VALUE; name it without dots, blanks and ="
            yield from _unknown(table, keys, place=place)
            yield from (_plugin_table if name == "plugin" else _setting)(place, table)
    for flag, names in raw.get("choices", {}).items():
        yield from _list(f"[choices] {flag}", names)


def _unknown(table: Mapping[str, Any], keys: Iterable[str], *, place: str) -> Iterator[str]:
    for key in table:
        if key not in keys:
            cure = _misplaced(key) if not place else ""
            cure = cure or nearest(key, keys) or f"it may have {', '.join(keys)}"
            yield f"{place}there is no key {key!r}; {cure}"


def _misplaced(key: str) -> str:
    """Say which table a key of the top level belongs into, also one that is nearly a key of it, or ""."""
    words = re.split(r"[^a-z0-9]+", key.lower())
    if same := [name for name in _TOP if name in words]:  # api_version
        return f"did you mean {same[0]!r}?"
    homes = {inner: name for name, keys in _TABLES.items() for inner in keys}
    near = nearest_names(key, (*_TOP, *homes), most=1)
    if not near or near[0] in _TOP:
        return ""
    wished = "it stands" if near[0] == key else f"did you mean {near[0]!r}? It stands"
    return f"{wished} in a table [{homes[near[0]]}.NAME]"


def _plugin_table(place: str, table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield from _list(f"{place}{key}", value)
    roles = [str(role) for role in Role]
    for role in table.get("roles", ()):
        if role not in roles:
            cure = nearest(role, roles) or f"there are {', '.join(roles)}"
            yield f"{place}roles: there is no role {role!r}; {cure}"


def _list(place: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{place} = {value!r} is {kind_of(value)}; write {_LIST}"
        return
    for item in value:
        if not isinstance(item, str):
            yield f"{place} holds {item!r}, {kind_of(item)}; write {_LIST}"


def _setting(place: str, table: Mapping[str, Any]) -> Iterator[str]:
    kind, default = table.get("type", "str"), table.get("default")
    if kind not in SETTING_TYPES:
        yield f"{place}type = {kind!r}; write one of {', '.join(SETTING_TYPES)}"
        return
    if not isinstance(text := table.get("help", ""), str):
        yield f"{place}help = {text!r} is {kind_of(text)}; write text"
    if default is not None and not _is_a(default, kind):
        cure = f"write {WRITTEN[kind]}, or another type"
        yield f"{place}default = {default!r} is {kind_of(default)}, and its type is {kind}; {cure}"
    elif default is not None and (problem := unfit(default)):
        yield f"{place}default = {default!r} {problem}"


def unfit(value: Any) -> str:
    """Say why a setting of the right type cannot travel to other processes and into JSON, or ""."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number; write one such as 0.5"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "has more than 64 bits; write a smaller number"
    return ""


def _is_a(value: Any, kind: str) -> bool:
    """Tell whether a TOML value is of a declared type; a whole number is a float, too, and true is no number."""
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    return isinstance(value, (int, float) if kind == "float" else SETTING_TYPES[kind])
