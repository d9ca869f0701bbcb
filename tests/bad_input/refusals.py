"""Runs the real command line with bad input and checks what every refusal has in common."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

FAILED, USAGE = 1, 2


def run_graftlm(
    *words: str | bytes, env: Mapping[str, str] | None = None, stdin: bytes = b"", timeout_s: float = 240
) -> tuple[int, str, str]:
    """Run `graftlm WORDS` to its end in a group of its own; return exit code, stdout and stderr.

    Asserts that nothing of the group is left running.
    """
    command = [sys.executable, "-m", "graftlm", *words]
    process = subprocess.Popen(
        command, env={**os.environ, **(env or {})}, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
    assert _group_ends(process.pid), f"a process of {words} is left running"
    return process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace")


def refusal(
    *words: str | bytes, code: int = FAILED, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> str:
    """Run what must be refused; return its one line of error, which stands last."""
    returncode, _, stderr = run_graftlm(*words, env=env, stdin=stdin)
    lines = stderr.splitlines()
    assert lines, f"{words} said nothing (exit code {returncode})"
    assert returncode == code, stderr
    assert "Traceback" not in stderr
    assert lines[-1].startswith("graftlm: error: "), stderr
    assert sum(line.startswith("graftlm: error: ") for line in lines) == 1, stderr
    assert len(lines[-1]) < 1200, "nobody reads that"
    return lines[-1]


def _group_ends(group: int, *, within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    os.killpg(group, 9)
    return False
