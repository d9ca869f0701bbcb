"""Reads `--plugin-config NAME.KEY=VALUE` against what manifests declare; does not know what a setting does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graftlm.plugins.errors import InvalidSetting
from graftlm.plugins.manifest import Setting
from graftlm.plugins.manifest_checks import WRITTEN, unfit
from graftlm.plugins.plugin import Plugin, normalized
from graftlm.plugins.spelling import nearest

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def read_settings(
    entries: Iterable[str], declared: Mapping[str, Mapping[str, Setting]], *, plugins: Sequence[Plugin]
) -> dict[str, dict[str, Any]]:
    """Return distribution -> key -> value: declared defaults, with `entries` over them.

    NAME is a distribution, or a plugin of one.
    """
    values = {d: {k: s.default for k, s in settings.items()} for d, settings in declared.items()}
    for text in entries:
        left, separator, value = text.partition("=")
        name, dot, key = left.strip().rpartition(".")
        if not separator or not dot:
            raise InvalidSetting(text, problem="write it as NAME.KEY=VALUE")
        distribution = _distribution(text, name, plugins)
        known = declared.get(distribution, {})
        if key not in known:
            cure = nearest(key, known) or f"{distribution} declares: {', '.join(sorted(known)) or 'no settings'}"
            raise InvalidSetting(text, problem=f"{distribution} has no setting {key!r}; {cure}")
        values[distribution][key] = found = _convert(text, value.strip(), known[key].type)
        if problem := unfit(found):
            raise InvalidSetting(text, problem=f"{value.strip()!r} {problem}")
    return values


def _distribution(text: str, name: str, plugins: Sequence[Plugin]) -> str:
    found = {
        p.distribution for p in plugins if p.answers_to(name) or normalized(p.distribution) == normalized(name)
    }
    if not found:
        cure = nearest(name, [p.name for p in plugins] + [p.distribution for p in plugins])
        raise InvalidSetting(
            text, problem=f"no enabled plugin or distribution is called {name!r}; {cure}".rstrip("; ")
        )
    if len(found) > 1:
        raise InvalidSetting(text, problem=f"{name!r} is ambiguous; write one of {', '.join(sorted(found))}")
    return found.pop()


def _convert(text: str, value: str, kind: str) -> Any:
    try:
        match kind:
            case "int":
                return int(value)
            case "float":
                return float(value)
            case "bool":
                return _WORDS[value.lower()]
    except (ValueError, KeyError):
        raise InvalidSetting(text, problem=f"{value!r} is not of type {kind}; write {WRITTEN[kind]}") from None
    return value
