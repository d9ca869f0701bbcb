"""What every benchmark does as a command: servers end with it, and what goes wrong is one sentence.

It measures nothing.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from graftlm.cli.output_file import check_writable
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError

#: The exit code of a wrong command line, and of what could not be measured.
NOT_MEASURED = 2


def run_command(program: str, run: Callable[[], int], *, json_file: str | None) -> int:
    """Run a benchmark and return its exit code; a file that cannot be written is refused before."""
    end_servers_when_terminated()
    try:
        if json_file not in (None, "-"):
            check_writable("--json", json_file)
        return run()
    except (GraftlmError, ConfigError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return NOT_MEASURED


def end_servers_when_terminated() -> None:
    """Let SIGTERM and SIGHUP unwind the `with` blocks, which end what was launched, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def say(text: str) -> None:
    """Tell the person who waits; results go to standard output, this does not."""
    print(text, file=sys.stderr, flush=True)
