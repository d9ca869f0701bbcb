"""Says why a command failed: one clear line, and a traceback only where somebody needs it.

It does not decide what is an error; what is raised on purpose says so by its class.
"""

from __future__ import annotations

import errno
import logging
import sys
import traceback

from graftlm.config.arguments import UsageError
from graftlm.config.environment import get
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.platforms.errors import PlatformFailed
from graftlm.plugins.errors import PluginError, PluginFailed, UnresolvedPath

#: The disk, or the user's share of it, is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)

USAGE = 2
FAILED = 1

#: A plugin raised: its author needs the traceback, which is that of the cause.
_PLUGIN_BUGS = (PluginFailed, PlatformFailed)


def report(error: Exception, *, command: str) -> int:
    """Print `error` as the last words of the command and return its exit code."""
    if isinstance(error, UsageError):
        _say(f"{error} (see `graftlm {command} --help`)" if "--help" not in str(error) else str(error))
        return USAGE
    if _wants_traceback(error):
        shown = error.__cause__ if isinstance(error, _PLUGIN_BUGS) and error.__cause__ is not None else error
        text = getattr(error, "traceback", "") or "".join(traceback.format_exception(shown))
        print(text.rstrip(), file=sys.stderr)
    _say(sentence(error))
    return FAILED


def _wants_traceback(error: Exception) -> bool:
    """What we said on purpose needs none, nor a full disk or a misspelt path; a bug, ours or a plugin's, does."""
    debugging = get("GRAFTLM_DEBUG") not in (None, "0") or logging.getLogger("graftlm").isEnabledFor(logging.DEBUG)
    return (
        debugging
        or (isinstance(error, _PLUGIN_BUGS) and not isinstance(error.__cause__, UnresolvedPath))
        or not (_on_purpose(error) or getattr(error, "errno", None) in _FULL)
    )


def _on_purpose(error: Exception) -> bool:
    return isinstance(error, ConfigError | GraftlmError | PluginError) or bool(getattr(error, "expected", False))


def sentence(error: Exception) -> str:
    """Say an error in one line, with its notes; what was not raised on purpose says its class, too."""
    notes = [note for note in getattr(error, "__notes__", []) if note not in str(error)]
    text = str(error) or type(error).__name__
    if not _on_purpose(error) and not hasattr(error, "cause"):
        text = f"{type(error).__name__}: {text}"
    return " ".join([text, *(f"[{note}]" for note in notes)])


def _say(text: str) -> None:
    sys.stdout.flush()
    print(f"graftlm: error: {text}", file=sys.stderr)
