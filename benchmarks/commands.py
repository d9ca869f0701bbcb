"""What every benchmark does as a command: servers end with it, and what goes wrong is one sentence.

It measures nothing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

from graftlm.cli.output_file import check_writable
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError

#: The exit code of a wrong command line, and of what could not be measured.
NOT_MEASURED = 2

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(program: str, run: Callable[[], int], *, json_file: str | None) -> int:
    """Run a benchmark and return its exit code; a file that cannot be written is refused before.

    A bug of ours shows its traceback; its exit code is that of what could not be measured, never that of a finding.
    """
    end_servers_when_terminated()
    try:
        if json_file not in (None, "-"):
            check_writable("--json", json_file)
        return run()
    except (GraftlmError, ConfigError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
    except OSError as error:  # a full disk, a program that is not there
        print(f"{program}: error: {error.filename or 'it stopped'}: {error.strerror or error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return NOT_MEASURED


def end_servers_when_terminated() -> None:
    """Let the first Ctrl-C, SIGTERM or SIGHUP unwind the `with` blocks, which end what was launched.

    More of them are let be, lest they interrupt that. What the caller ignores, as under nohup, stays ignored.
    """
    numbers = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]

    def end(number: int, frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        say(f"{signal.Signals(number).name}: ending what was launched")
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, end)


def run_alone(command: Sequence[str], *, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and what it starts in a group of its own, none of which is left behind; raises GraftlmError."""
    shown = _shown(command)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise GraftlmError(f"{shown!r} cannot be run: {error.strerror}") from None
    with process:
        try:
            said, complained = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise GraftlmError(f"{shown!r} did not end within {timeout_s:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing is left, as it should be
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def ask(command: Sequence[str], *, timeout_s: float = 120.0) -> str:
    """Return what a command says, on either stream; raises GraftlmError."""
    done = run_alone(command, timeout_s=timeout_s)
    if done.returncode != 0:
        words = done.stderr.strip()[-800:] or "it said nothing"
        raise GraftlmError(f"{_shown(command)!r} failed with exit code {done.returncode}: {words}")
    if not (text := done.stdout.strip() or done.stderr.strip()):
        raise GraftlmError(f"{_shown(command)!r} says nothing; is it the right program?")
    return text


def _shown(command: Sequence[str]) -> str:
    return shlex.join(word for word in command if "\n" not in word)


def say(text: str) -> None:
    """Tell the person who waits; results go to standard output, this does not."""
    print(text, file=sys.stderr, flush=True)
