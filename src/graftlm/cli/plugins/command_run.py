"""Runs a command and reads, while it runs, what all its processes do with their plugins.

It does not know what the events mean.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from graftlm.cli.main import COMMANDS
from graftlm.config.arguments import UsageError
from graftlm.plugins.live_trace import TraceLine, read_line
from graftlm.processes.in_hand import start_in_hand

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

_POLL_S = 0.03
_END_S = 20.0


def split_command(argv: Sequence[str], *, example: str) -> tuple[list[str], list[str]]:
    """Return what stands before `--` and the command behind it, ready to be started."""
    words = list(argv)
    if "--" not in words or words.index("--") == len(words) - 1:
        raise UsageError(f"write the command behind --, such as `{example}`")
    place = words.index("--")
    flags, command = words[:place], words[place + 1 :]
    if command[0] == "graftlm" and len(command) > 1:
        command = command[1:]
    if command[0] in COMMANDS:
        return flags, [sys.executable, "-P", "-m", "graftlm", *command]
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]!r} is neither a graftlm command ({', '.join(COMMANDS)}) nor a program")
    return flags, command


class CommandRun:
    """One run of a command; what it prints goes to our stderr, or to `output`. Used as a context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        shutdown: ShutdownRequest,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.code: int | None = None
        self.timed_out = False
        self._deadline = deadline
        self._shutdown = shutdown
        self._folder = tempfile.mkdtemp(prefix="graftlm-trace-")
        self._file = Path(self._folder) / "events.jsonl"
        self._file.touch()
        out = output if output is not None else sys.stderr.fileno()
        try:
            self._process = start_in_hand(
                list(command), env={**os.environ, **(env or {}), "GRAFTLM_TRACE": str(self._file)}, stdout=out,
                stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.pid = self._process.pid

    def __enter__(self) -> CommandRun:
        self._shutdown.add_callback(self.end)
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._shutdown.remove_callback(self.end)
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Ask the command to end in order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def lines(self) -> Iterator[TraceLine]:
        """Yield the events of all processes as they come, until the command has ended; then `code` is set."""
        with self._file.open("rb") as stream:
            rest = b""
            while True:
                ended = self._process.poll() is not None
                rest += stream.read()
                *whole, rest = rest.split(b"\n")
                for line in whole:
                    try:
                        yield read_line(line)
                    except msgspec.MsgspecError as error:
                        print(f"graftlm plugins: unreadable event {line[:80]!r}: {error}", file=sys.stderr)
                if ended:
                    break
                if self._deadline is not None and time.monotonic() > self._deadline:
                    self.timed_out = True
                    self.end()
                    return
                time.sleep(_POLL_S)
        self.code = self._process.returncode
