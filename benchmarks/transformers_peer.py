"""`transformers` generate as a peer: a process of its own on the same weights, driven by JSON lines.

It has no server, so what is more than `at_once` waits for the batch before it to end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from benchmarks.peer import memory_mib
from graftlm.cli.bench.client import Exchange
from graftlm.cli.bench.launch import LaunchFailed
from graftlm.cli.bench.prompts import Prompt
from graftlm.contracts.errors import GraftlmError

_CHILD = Path(__file__).with_name("transformers_child.py")


def installed_version() -> str:
    """Return the version of transformers here; raises GraftlmError."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        raise GraftlmError("--transformers: it is not installed in this environment; leave it out") from None


class TransformersPeer:
    """fp32 on all threads, without a server."""

    name = "transformers"
    settings = "generate, fp32, in process, all prompts of a batch at once"

    def __init__(self, checkpoint: Path, threads: int) -> None:
        self.version = installed_version()
        self._checkpoint = checkpoint
        self._threads = threads

    def start(self) -> RunningTransformers:
        return RunningTransformers(self._checkpoint, self._threads)


class RunningTransformers:
    """One such process."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        launched = time.perf_counter()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as self
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), str(checkpoint), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        try:
            self._read()
            self._generate([[10, 11, 12, 13]], 1)
        except BaseException:
            self.__exit__()
            raise
        self.first_token_s = time.perf_counter() - launched
        self.memory_mib = memory_mib(self._process.pid)

    def send(self, prompts: Sequence[Prompt], *, at_once: int) -> tuple[list[Exchange], float]:
        exchanges, begin = [], time.perf_counter()
        for place in range(0, len(prompts), at_once):
            batch = prompts[place : place + at_once]
            start = time.perf_counter()
            moments = self._generate([prompt.prompt for prompt in batch], batch[0].output_len)
            arrivals = [start + moment for moment in moments]
            for prompt in batch:
                exchanges.append(
                    Exchange(start=start, arrivals=arrivals, end=arrivals[-1], num_prompt_tokens=len(prompt.prompt),
                             num_output_tokens=len(arrivals))
                )  # fmt: skip
        return exchanges, time.perf_counter() - begin

    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-12:])

    def _generate(self, prompts: Sequence[Any], max_new_tokens: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_new_tokens": max_new_tokens}) + "\n")
        self._process.stdin.flush()
        arrivals: list[float] = self._read()["arrivals"]
        return arrivals

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LaunchFailed("transformers", code=self._process.wait(), words=self.last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()  # it has nothing to put in order
        self._process.wait()
        self._log.close()
