"""`docs/plugins/first-platform.md`, followed to the letter: its files are written, its commands are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_packages import REPOSITORY, Site
from point_server import LiveServer

PAGE = REPOSITORY / "docs" / "plugins" / "first-platform.md"
BLOCK = re.compile(r"(?:^`(?P<path>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)


class Reader:
    """Somebody who reads the page from top to bottom and does what it says, with a tiny model for the demo."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = self.here = folder
        self.model = model
        self.env = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        self.env["GRAFTLM_CACHE"] = str(folder / "cache")
        self.site = Site(folder / "no-site")
        self.installations = 0
        self.server: LiveServer | None = None
        self.said = ""
        self.log: list[str] = []

    def do(self, line: str) -> None:
        match shlex.split(line):
            case ["cd", place]:
                self.here = self.here / place
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self.env[name] = value
            case ["pip", "install", "--editable", "."]:
                self.install()
            case ["graftlm", "serve", "demo", *flags]:
                self.stop()
                self.server = LiveServer(self.site, str(self.model), *flags, env=self.env)
            case ["curl", url, *rest]:
                assert self.server is not None
                body = json.loads(rest[rest.index("-d") + 1]) if "-d" in rest else None
                status, answer = self.server.call(url.removeprefix("localhost:8000"), body)
                assert status == 200, answer
                self.said = json.dumps(answer, separators=(",", ":"))
            case ["python", "-m", "pytest"]:
                self.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
            case ["graftlm", *arguments]:
                self.run(sys.executable, "-m", "graftlm", *arguments)
            case words:
                raise AssertionError(f"the page has a command that this test does not know: {words}")

    def run(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.here, env={**os.environ, **self.site.environment, **self.env}, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=240,
        )  # fmt: skip
        self.said = done.stdout + done.stderr
        assert done.returncode == 0, self.said

    def install(self) -> None:
        """Build a wheel of the package and put it where every process looks; nothing else is touched."""
        self.installations += 1
        wheels = self.folder / f"wheels{self.installations}"
        self.run(
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
            "--disable-pip-version-check", "--wheel-dir", str(wheels), ".",
        )  # fmt: skip
        self.site = Site(self.folder / f"site{self.installations}").install(*wheels.glob("*.whl"))

    def write(self, path: str, text: str) -> None:
        """An editable installation has what is written at once."""
        (self.here / path).write_text(text)
        installed = self.site.folder / path
        if installed.parent.is_dir() and path != "pyproject.toml":
            installed.write_text(text)

    def stop(self) -> None:
        if self.server is not None:
            self.log.append(self.server.server.output)
            self.server.stop()
            self.server = None


@pytest.fixture
def reader(tmp_path: Path, tiny_llama: Path):
    """A reader whose server always ends."""
    reader = Reader(tmp_path, tiny_llama)
    yield reader
    reader.stop()


def test_the_page_can_be_followed_to_the_letter(reader):
    """New package, its tests, a server on the device, a real detector, a replaced op: all as written."""
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    for block in blocks:
        match block["language"]:
            case "sh":
                for line in block["text"].replace("\\\n", " ").splitlines():
                    reader.do(line)
            case "text":
                for line in block["text"].splitlines():
                    assert line.strip() in reader.said, f"{line!r} is not in:\n{reader.said}"
            case "python" | "toml":
                reader.write(block["path"], block["text"])
    reader.stop()

    assert len(blocks) > 12 and reader.installations == 2
    first, second = reader.log
    for log in (first, second):
        assert "Platform plugin acme is activated" in log
        assert "worker_cls=graftlm_acme.worker:AcmeWorker" in log
    assert "replacement=graftlm_acme.norm.AcmeRMSNorm" in second and "AcmeRMSNorm" not in first
