"""Runs functions in other, fresh interpreters, so that a check can compare processes; knows no check.

Each child has another seed of hashes, the same sys.path and one compute thread. It answers calls until its parent's
pipe closes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import selectors
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from graftlm.plugins.resolve import resolve_class_path

_LENGTH = struct.Struct("<Q")
_RANKS_TIMEOUT_S = 120.0


class FailedElsewhere(AssertionError):
    """What was called in another process raised there; the text is its traceback."""


class Elsewhere:
    """One other process; `call` runs "module:function" there with plain arguments."""

    def __init__(self, *, hash_seed: int = 1) -> None:
        # What `python -m` puts first must not be lost: an empty entry is the working directory.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "graftlm.testing.elsewhere"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def call(self, function: str, *args: Any) -> Any:
        """Run it and return what it returns; FailedElsewhere when it raises."""
        self.send(function, *args)
        return self.receive()

    def send(self, function: str, *args: Any) -> None:
        """Start a call whose answer `receive` fetches, so that several processes can meet in a collective."""
        assert self._process.stdin is not None
        _write(self._process.stdin, pickle.dumps((function, args)))

    def receive(self) -> Any:
        assert self._process.stdout is not None
        data = _read(self._process.stdout)
        if data is None:
            raise FailedElsewhere(f"the other process ended with exit code {self._process.wait()}")
        fine, value = pickle.loads(data)  # our own child's words
        if not fine:
            raise FailedElsewhere(value)
        return value

    def fileno(self) -> int:
        """Be readable when there is an answer to receive."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def kill(self) -> None:
        """End the process whatever it is doing."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the pipe, which ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@functools.cache
def elsewhere() -> Elsewhere:
    """Return the process that all checks share; it ends with this one."""
    other = Elsewhere()
    atexit.register(other.close)
    return other


@contextlib.contextmanager
def as_elsewhere() -> Iterator[None]:
    """Compute with one thread, as the other processes do: how many share a sum decides how it is rounded."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_ranks(function: str, *args: Any, size: int = 2) -> list[Any]:
    """Run `function(rank, size, init_method, *args)` in `size` processes at once; return their answers by rank.

    The processes are kept for the next call. When one fails, the others are killed, since they may wait for it.
    """
    ranks = _ranks.setdefault(size, [])
    if not ranks:
        ranks.extend(Elsewhere(hash_seed=rank + 1) for rank in range(size))
    with tempfile.TemporaryDirectory(prefix="graftlm-ranks-") as folder:
        init_method = (Path(folder) / "rendezvous").as_uri()
        try:
            for rank, process in enumerate(ranks):
                process.send(function, rank, size, init_method, *args)
            return _receive_all(ranks)
        except BaseException:
            for process in _ranks.pop(size):
                process.kill()
            raise


def _receive_all(ranks: Sequence[Elsewhere]) -> list[Any]:
    answers: dict[int, Any] = {}
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(ranks):
            selector.register(process, selectors.EVENT_READ, rank)
        while len(answers) < len(ranks):
            ready = selector.select(timeout=_RANKS_TIMEOUT_S)
            if not ready:
                raise FailedElsewhere(f"only ranks {sorted(answers)} answered within {_RANKS_TIMEOUT_S} s")
            for key, _ in ready:
                answers[key.data] = ranks[key.data].receive()
                selector.unregister(key.fileobj)
    return [answers[rank] for rank in range(len(ranks))]


def _close_ranks() -> None:
    for ranks in _ranks.values():
        for process in ranks:
            process.close()


_ranks: dict[int, list[Elsewhere]] = {}
atexit.register(_close_ranks)


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    head = stream.read(_LENGTH.size)
    return None if len(head) < _LENGTH.size else stream.read(_LENGTH.unpack(head)[0])


def _answer(function: str, args: Sequence[Any]) -> bytes:
    try:
        return pickle.dumps((True, resolve_class_path(function)(*args)))
    except Exception:
        return pickle.dumps((False, traceback.format_exc()))


def main() -> int:
    """Answer calls from stdin; whatever the called code prints goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while (data := _read(sys.stdin.buffer)) is not None:
        _write(answers, _answer(*pickle.loads(data)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
