"""Why a process gave up, as text that crosses to its parent; it decides nothing about what follows.

ChildFailed
└── (raised by launch.py: the child reported a failure, or ended without a word)
"""

from __future__ import annotations

import logging
import signal
import traceback as tracebacks

import msgspec

from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.errors import PluginError, PluginFailed

#: What native code does to its process; its parent prints the stack that it left.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class Failure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The cause in one sentence, and the traceback if anybody needs it: whoever gets one shows it, once.

    `expected` marks an error that speaks to the user on purpose: it names the value and the cure.
    """

    cause: str
    traceback: str = ""
    expected: bool = False

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Failure:
        return msgspec.msgpack.decode(data, type=cls)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, with the notes that plugin blame added to it."""
        expected = is_expected(error)
        message = str(error) or repr(error)
        cause = message if expected else f"{type(error).__name__}: {message}"
        notes = getattr(error, "__notes__", [])
        text = " ".join([cause, *(f"[{n}]" for n in notes)]) if expected else "\n".join([cause, *notes])
        return cls(
            cause=text,
            traceback="".join(tracebacks.format_exception(error)) if _wants_traceback(error) else "",
            expected=expected,
        )


class ChildFailed(Exception):
    """A child process reported a failure or died; `cause` is one sentence for people."""

    def __init__(self, name: str, failure: Failure) -> None:
        super().__init__(failure.cause if failure.expected else f"{name}: {failure.cause}")
        self.name = name
        self.cause = str(self)
        self.traceback = failure.traceback
        self.expected = failure.expected


def is_expected(error: BaseException) -> bool:
    """Tell whether an error was raised on purpose to tell the user something."""
    return isinstance(error, (GraftlmError, ConfigError, PluginError))


def _wants_traceback(error: BaseException) -> bool:
    """A bug does, ours or a plugin's; so does somebody who debugs."""
    debugging = logging.getLogger("graftlm").isEnabledFor(logging.DEBUG)
    return debugging or isinstance(error, PluginFailed) or not is_expected(error)


def describe_exit(code: int | None, *, whose: str = "") -> str:
    """Say in words how a process ended, and in `whose` code, as its last words tell."""
    if code is None:
        return "ended without an exit code"
    if code >= 0:
        return f"ended with exit code {code}" + (f": {whose}" if whose else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (by hand, or by the system because memory ran out)" if -code == signal.SIGKILL else ""
    if -code in _CRASHES:
        hint = f" (a crash in native code, {whose or 'the stack above says whose, or `graftlm plugins doctor`'})"
    return f"was killed by {name}{hint}"
