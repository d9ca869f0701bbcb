"""Reads from the stack that a crashed process left whose code it was in; prints nothing and ends nobody."""

from __future__ import annotations

import re
from pathlib import Path

from graftlm.plugins.manifest import find_package
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import held_host

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
#: How faulthandler begins a stack that a timer of ours asked for, and a thread that crashed.
_HUNG, _CRASHED = "Timeout (", "Current thread "


def whose_code(words: str) -> str:
    """Return which plugin's code ran, where, and how to do without it; "" when no frame is a known plugin's."""
    host = held_host()
    places = [
        (place, plugin)
        for plugin in (host.known_plugins if host is not None else ())
        if not plugin.built_in and (place := find_package(plugin.package)) is not None
    ]
    for frame in _FRAME.finditer(_thread_in(words)):
        if (plugin := _owner(Path(frame["file"]), places)) is not None:
            did = "it did not come back from" if words.startswith(_HUNG) else "called by"
            return (
                f"{did} plugin {plugin.description}, {frame['file']} line {frame['line']} in {frame['function']}; "
                f"--disable-plugin {plugin.label} leaves it out"
            )
    return ""


def _thread_in(words: str) -> str:
    """Return the stack of the thread that crashed; all of them where none did, or none is known."""
    _, found, rest = words.partition(_CRASHED)
    return rest.partition("\n\n")[0] if found else words


def _owner(file: Path, places: list[tuple[Path, Plugin]]) -> Plugin | None:
    """Return the plugin in whose package, or module, `file` lies; of several, the one that names the file."""
    here = [plugin for place, plugin in places if file == place or place in file.parents]
    named = [p for p in here if p.value.partition(":")[0].rpartition(".")[2] in (file.stem, file.parent.name)]
    return next(iter(named or here), None)
