"""Chooses the sub-command, imports only that one, and turns what it raises into one line and an exit code.

It knows no flag of any sub-command, and imports neither torch nor a plugin.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

#: Name, what it does. The module is graftlm.cli.<name>, with `run(argv, *, shutdown) -> exit code`.
COMMANDS = {
    "serve": "Serve a model through the OpenAI API.",
    "run": "Chat with a model in the terminal, or answer one prompt.",
    "preload": "Keep a process warm, from which `serve` and `run` start in a moment.",
    "fetch": "Bring a model to this machine.",
    "doctor": "Show the machine, the platform and the versions, fit for a bug report.",
    "bench": "Measure a server, the engine, a start, or what plugins cost.",
    "plugins": "List the installed plugins, their state and why.",
}
#: Those that start an engine in a process of its own.
_WITH_ENGINE = frozenset({"serve", "run"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `graftlm` command and return its exit code: 0, 1 for an error, 2 for a wrong command line."""
    if argv is None:  # the real command line: a signal may come before there is anything to end in order
        _end_quietly_on_signals()
        _open_closed_streams()
        _let_any_name_be_printed()
    words = list(sys.argv[1:] if argv is None else argv)
    if (word := next((word for word in words if not _is_text(word)), None)) is not None:
        print(
            f"graftlm: error: {word!r} is not UTF-8; rename the file, or set the terminal to UTF-8", file=sys.stderr
        )
        return 2
    match words:
        case [] | ["-h" | "--help" | "help"]:
            print(help_text())
            return 0
        case ["-V" | "--version" | "version"]:
            print(f"graftlm {__version__}")
            return 0
        case [name, *rest] if name in COMMANDS:
            if (problem := _problem_of_directory()) and _needs_directory(name, rest):
                print(f"graftlm: error: {problem}", file=sys.stderr)
                return 2
            return _call(name, rest) if argv is not None else _run(name, rest)
    return _unknown(words[0])


def help_text() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: graftlm COMMAND [OPTION …]",
            "",
            "Serve large language models. The engine grows by `pip install` of plugins.",
            "",
            *lines,
            "",
            "`graftlm COMMAND --help` explains the flags of a command; `graftlm --version` prints the version.",
        ]
    )


def _end_quietly_on_signals() -> None:
    import atexit
    import signal

    atexit.register(_ignore_signals)  # the first, and so called last
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)


def _ignore_signals() -> None:
    """Else the interpreter, while it is taken down, would let a signal decide the exit code of what is done."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _end_at_once(*_: object) -> None:
    import os

    _end_early_child()
    os._exit(0)


def _end_early_child() -> None:
    early = sys.modules.get("graftlm.processes.early")
    if leave := getattr(early, "leave_none_behind", None):  # half imported it has none, and has started nobody
        leave()


def _open_closed_streams() -> None:
    """Give a stream that the caller closed (`graftlm plugins >&-`) to nobody, not to the next file or socket."""
    import os

    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115


def _let_any_name_be_printed() -> None:
    """A file name that is no UTF-8, or an emoji on a terminal that has none, is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if unicode else "backslashreplace")


def _is_text(word: str) -> bool:
    """Tell whether a word of the command line was UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem_of_directory() -> str:
    """Say why nothing can be started here, or "": in a directory that was removed even torch ends its process."""
    import os

    try:
        os.getcwd()  # noqa: PTH109 - pathlib is imported later
    except OSError as error:
        return (
            f"the working directory cannot be used ({error.strerror}); change to another one, such as with `cd ~`"
        )
    return ""


def _needs_directory(name: str, argv: list[str]) -> bool:
    """Tell what only looks at the installation, or explains flags, from what reads files or starts processes."""
    if name == "doctor" or {"-h", "--help"} & set(argv):
        return False
    return name != "plugins" or bool({"explain", "trace", "new", "test", "bisect"} & set(argv[:1]))


def _run(name: str, argv: list[str]) -> int:
    """Run a command as the whole of this process, which no plugin ends or keeps in silence."""
    import faulthandler

    if name in _WITH_ENGINE and not {"-h", "--help"} & set(argv):
        from graftlm.processes.early import start_early

        # An interpreter takes as long to start as the flags to be read; that one cannot be started is told later.
        with contextlib.suppress(OSError):
            start_early("engine core")
    from graftlm.cli.leaving import leave_threads_behind
    from graftlm.processes.exit_guard import guard_exits

    guard_exits()
    if sys.stderr is not None:
        faulthandler.enable()  # a crash in native code prints whose code it was
    try:
        code = _call(name, argv)
    finally:
        _end_early_child()
    leave_threads_behind(code)
    return code


def _call(name: str, argv: list[str]) -> int:
    from graftlm.processes.shutdown import install_shutdown_handlers

    shutdown = install_shutdown_handlers()
    try:
        return _result_of(name, argv, shutdown)
    except KeyboardInterrupt:
        return 0
    finally:
        shutdown.add_callback(lambda: None)  # it ends already: a signal interrupts nothing any more


def _result_of(name: str, argv: list[str], shutdown: ShutdownRequest) -> int:
    try:
        import importlib

        code: int = importlib.import_module(f"graftlm.cli.{name}").run(argv, shutdown=shutdown)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output is gone, as in `graftlm plugins | head`
        sys.stderr.close()
        return 0
    except Exception as error:
        if shutdown.requested.is_set():
            return 0
        from graftlm.cli.failures import report

        return report(error, command=name)


def _unknown(word: str) -> int:
    from graftlm.plugins.spelling import nearest_names

    near = nearest_names(word, COMMANDS, most=2)
    cure = f"did you mean {' or '.join(near)}?" if near else f"the commands are {', '.join(COMMANDS)}"
    print(f"graftlm: error: unknown command {word!r}; {cure}", file=sys.stderr)
    return 2
