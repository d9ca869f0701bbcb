"""A real `graftlm serve` process for tests, which always ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


class Server:
    """`python -m graftlm serve ARGS` on a free port of 127.0.0.1."""

    def __init__(self, args: list[str], *, env: dict[str, str] | None = None, timeout_s: float = 240) -> None:
        self.port = _free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.args = args
        self.env = {**os.environ, **(env or {})}
        self.timeout_s = timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="graftlm-server-", suffix=".log")  # noqa: SIM115 - lives as self

    def launch(self) -> Server:
        """Start the process without waiting for it to become ready."""
        command = [sys.executable, "-m", "graftlm", "serve", *self.args, "--host=127.0.0.1", f"--port={self.port}"]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        return self

    def start(self) -> Server:
        """Start the process and wait until /health is 200; else end it and raise with what it said."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise AssertionError(f"the server ended with exit code {code} before it was ready:\n{self.output}")
            if self.healthy():
                return
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready within {self.timeout_s} s:\n{self.output}")

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def output(self) -> str:
        """What the server and its children wrote so far."""
        return Path(self._log.name).read_text(errors="replace")

    def stop(self, *, timeout_s: float = 60) -> int:
        """End the server as a user would, by force only if it does not; return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(self.process.pid)
            return self.process.wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill_group(pid: int) -> None:
    """The server leads its own group, so this reaches its children and nobody else."""
    os.killpg(pid, signal.SIGKILL)
