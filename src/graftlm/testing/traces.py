"""Watches what a call does beside its answer: files, connections, processes, words on stdout; knows no contract."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

_INTERNET = (socket.AF_INET, socket.AF_INET6)


@dataclasses.dataclass(slots=True)
class Traces:
    """What happened inside a `watched` block; `left` and `printed` are known at its end."""

    connections: list[str] = dataclasses.field(default_factory=list)
    processes: list[str] = dataclasses.field(default_factory=list)
    left: list[str] = dataclasses.field(default_factory=list)
    """What was made in the temporary folder and still is there."""
    printed: str = ""
    """What was written to stdout, where answers belong; progress and logs go to stderr."""


@contextlib.contextmanager
def watched() -> Iterator[Traces]:
    """Run the block without a network, with an empty temporary folder of its own, and note what it does."""
    traces = Traces()
    out = io.StringIO()
    start = subprocess.Popen.__init__

    def refuse(self: socket.socket, address: Any) -> int:
        if self.family in _INTERNET:
            traces.connections.append(f"{address}")
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        return int(connect(self, address) or 0)

    def unknown_host(host: Any, *args: Any, **kwargs: Any) -> Any:
        traces.connections.append(f"{host}")
        raise socket.gaierror(socket.EAI_AGAIN, "there is no network in this check")

    def note(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        traces.processes.append(args if isinstance(args, str) else " ".join(map(str, args)))
        start(self, args, *rest, **kwargs)

    connect = socket.socket.connect
    with tempfile.TemporaryDirectory(prefix="graftlm-watched-") as folder:
        with (
            mock.patch.object(socket.socket, "connect", refuse),
            mock.patch.object(socket.socket, "connect_ex", refuse),
            mock.patch.object(socket, "getaddrinfo", unknown_host),
            mock.patch.object(subprocess.Popen, "__init__", note),
            mock.patch.object(tempfile, "tempdir", folder),
            mock.patch.dict(os.environ, TMPDIR=folder),
            contextlib.redirect_stdout(out),
        ):
            yield traces
        traces.left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        traces.printed = out.getvalue()


def digest(path: Path) -> dict[str, str]:
    """Return what a file or directory holds: place -> hash of the bytes."""
    if path.is_file():
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def torch_imported_by(path: str, module: str = "torch") -> bool:
    """Tell whether importing what `path` names imports torch; called in a fresh process."""
    import sys

    from graftlm.plugins.resolve import resolve_class_path

    if module in sys.modules:
        raise RuntimeError(f"{module} was imported before, so that nothing can be told")
    resolve_class_path(path)
    return module in sys.modules
