"""`docs/plugins/testing.md` as a plugin author would follow it: its files are written, its tests are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from plugin_packages import REPOSITORY, Site

import graftlm.testing
import graftlm.testing.conformance
from graftlm.testing.suite import Suite

PAGE = (REPOSITORY / "docs" / "plugins" / "testing.md").read_text()
FILES = dict(re.findall(r"^`([\w.]+\.py)`:\n\n```python\n(.*?)^```", PAGE, re.M | re.S))


def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    """All of its test files pass, and so does the command that needs none, also where torch uses two threads."""
    modules = {name: text for name, text in FILES.items() if not name.startswith("test_")}
    site = Site(tmp_path / "site").write(
        "acme-norm",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNorm": "acme_norm:AcmeRMSNorm"}},
        files=modules,
    )
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in FILES.keys() - modules.keys():
        (tests / name).write_text(FILES[name])

    def pytest(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tests, env={**os.environ, **site.environment, "OMP_NUM_THREADS": "2"},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    passed = re.search(r"\b(\d+) passed, 1 skipped", pytest())
    assert passed is not None, "plain tensors are not cut"
    assert int(passed[1]) == 23 + 9 + 10 + 9 + 9, "three suites of seven checks, two tests, and four suites more"
    command = re.search(r"`python -m pytest (-p graftlm[^`]*)`", PAGE)
    assert command is not None
    assert re.search(r"\b7 passed", pytest(*command[1].split()))


def test_the_page_names_every_suite() -> None:
    """With the attributes that its author may set."""
    suites = [
        cls for name in graftlm.testing.conformance.__all__
        if isinstance(cls := getattr(graftlm.testing.conformance, name), type)
        and issubclass(cls, Suite) and cls is not Suite
    ]  # fmt: skip

    assert len(suites) == 13
    for suite in suites:
        (row,) = re.findall(rf"^\| `{suite.__name__}` .*$", PAGE, re.M)
        named = re.findall(r"`(\w+)`", row.split("|")[4].partition("; not needed")[0])
        assert [name for name in named if not hasattr(suite, name) and name != "TinyCheckpoint"] == []


def test_every_public_name_exists() -> None:
    """`__all__` and the lazy look-up beside it agree."""
    for module in (graftlm.testing, graftlm.testing.conformance):
        assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
