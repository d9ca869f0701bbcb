"""Links torch's library in a thread, while the interpreter imports what else a process needs; it imports no torch.

Loading and linking it takes a fifth of torch's import and needs no interpreter. Only one library is linked at a
time, so whoever imports another meanwhile waits, and holds the interpreter: those of Python's modules come first.

Libraries read the environment while they are linked, and the C library lets nobody change it meanwhile: a process
that read it just then has crashed. Whoever changes it, or runs code that may, calls `wait_for_linking` before.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
import time

#: The libraries that the imports beside it want, Python's and one other. Not asyncio's, which runs all of asyncio.
_BEFORE = (
    "_bisect", "_blake2", "_bz2", "_contextvars", "_csv", "_ctypes", "_datetime", "_decimal", "_hashlib", "_heapq",
    "_json", "_lzma", "_opcode", "_pickle", "_posixsubprocess", "_random", "_sha512", "_socket", "_statistics",
    "_struct", "_typing", "_uuid", "array", "binascii", "fcntl", "math", "select", "zlib", "msgspec",
)  # fmt: skip


class Linking:
    """The work of one process: when it began, by the wall clock, and how long it took."""

    def __init__(self, library: str) -> None:
        self.begun, self.seconds = time.time(), 0.0
        import ctypes  # not for the processes that only ask whether something is linked

        # A function of C called by ctypes runs without the interpreter's lock; `ctypes.CDLL` itself keeps it.
        self._load = ctypes.CDLL(None).dlopen
        self._load.restype = ctypes.c_void_p
        self._thread = threading.Thread(target=self._run, args=(library,), name="linking torch", daemon=True)
        self._thread.start()

    def _run(self, library: str) -> None:
        started = time.perf_counter()
        # One that cannot be loaded is for torch's import to tell.
        self._load(os.fsencode(library), os.RTLD_NOW | os.RTLD_LOCAL)
        self.seconds = time.perf_counter() - started

    def wait(self) -> None:
        self._thread.join()


_linking: Linking | None = None


def start_linking() -> Linking | None:
    """Begin, unless this process has begun or imported torch; None where there is nothing to link ahead."""
    global _linking
    if _linking is None and "torch" not in sys.modules and (library := _library()) is not None:
        for name in _BEFORE:
            with contextlib.suppress(ImportError):  # built into some interpreters, left out of others
                importlib.import_module(name)
        _linking = Linking(library)
    return _linking


def wait_for_linking() -> None:
    """Return once nothing is linked in this process's thread; at once where it was never begun."""
    if _linking is not None:
        _linking.wait()


def _library() -> str | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    library = f"{spec.origin.rpartition('/')[0]}/lib/libtorch_cpu.so"
    return library if os.path.isfile(library) else None  # noqa: PTH113 - pathlib takes longer to import than this
