"""Reads from the stack that a crashed process left whose code it was in; prints nothing and ends nobody."""

from __future__ import annotations

import re
from pathlib import Path

from graftlm.processes.plugin_files import PluginFiles

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
#: How faulthandler begins a stack that a timer of ours asked for, and a thread that crashed.
_HUNG, _CRASHED = "Timeout (", "Current thread "


def whose_code(words: str) -> str:
    """Return which plugin's code ran, where, and how to do without it; "" when no frame is a known plugin's."""
    files = PluginFiles()
    for frame in _FRAME.finditer(_thread_in(words)):
        if (plugin := files.owner(Path(frame["file"]))) is not None:
            did = "it did not come back from" if words.startswith(_HUNG) else "called by"
            return (
                f"{did} plugin {plugin.description}, {frame['file']} line {frame['line']} in {frame['function']}; "
                f"--disable-plugin {plugin.left_out_by} leaves it out"
            )
    return ""


def _thread_in(words: str) -> str:
    """Return the stack of the thread that crashed; all of them where none did, or none is known."""
    _, found, rest = words.partition(_CRASHED)
    return rest.partition("\n\n")[0] if found else words
