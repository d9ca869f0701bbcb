"""`make bench-check` on a small repository whose commits are servers of known speed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "graftlm"
version = "1.0"
[tool.setuptools.packages.find]
where = ["src"]
"""


def write_engine(repository: Path, *, gap_s: float) -> None:
    """Write a package named graftlm that serves a token each `gap_s`."""
    package = repository / "src" / "graftlm"
    package.mkdir(parents=True, exist_ok=True)
    (repository / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        f"import os, sys\nos.environ['FAKE_GAP_S'] = '{gap_s}'\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from fake_engine import main\nmain()\n"
    )


def commit(repository: Path, message: str) -> None:
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", message], check=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Three commits: a server, the same server, and one that is many times as slow."""
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    for message, gap_s in (("first", 0.002), ("nothing changed", 0.002), ("a sleep in the step", 0.05)):
        write_engine(folder, gap_s=gap_s)
        commit(folder, message)
    return folder


def guard(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.regression",
        "--repository",
        str(repository),
        "--quick",
        "--rows",
        "1",
    ]
    # A busy machine doubles times for a while; what is sought here is a factor of many.
    more = ["--rounds", "7", "--family-error", "0.05", "--tolerance", "1.0", *words]
    return subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, timeout=250)


def test_identical_commits_pass(repository):
    """Exit code 0, and both commits are named."""
    done = guard(repository, "--base", "HEAD~2", "--head", "HEAD~1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is slower" in done.stdout
    assert "nothing changed" in done.stdout


def test_a_sleep_in_the_step_fails(repository):
    """Exit code 1, and the figures that show it are named."""
    done = guard(repository, "--base", "HEAD~1")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 stream, ITL p50, ms" in done.stdout.splitlines()[-1]
    assert "a sleep in the step" in done.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--base", "no-such-branch"], ["no-such-branch"]),
        (["--base", "--output=x"], ["expected one argument"]),
        (["--base=--output=x"], ["'--output=x' is no commit"]),
        (["--repository", "/"], ["not a git repository"]),
        (["--rounds", "3"], ["--rounds=3", "use 7 or more"]),
        (["--family-error", "0"], ["--family-error=0.0", "above 0 and below 1"]),
        (["--family-error", "nan"], ["--family-error=nan"]),
        (["--tolerance", "-1"], ["--tolerance=-1.0"]),
        (["--rows", "1", "1"], ["--rows names '1' twice"]),
    ],
)
def test_what_tells_nothing_is_refused(repository, words, parts):
    """Exit code 2: neither a pass nor a failure."""
    done = guard(repository, *words)

    assert done.returncode == 2
    assert all(part in done.stderr for part in parts)
    assert "Traceback" not in done.stderr


def test_a_shallow_clone_says_its_cure(repository, tmp_path):
    """The earlier commit is not there, and git's own words do not say why."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{repository}", str(clone)], check=True)
    done = guard(clone)

    assert done.returncode == 2
    assert "'HEAD~1' is no commit of" in done.stderr and "git fetch --unshallow" in done.stderr


def test_a_commit_that_cannot_be_measured_ends_the_run_at_once(repository, tmp_path):
    """Exit code 2 and its last words, after one launch; also one that cannot be installed, or has no project."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
    (clone / "src" / "graftlm" / "__main__.py").write_text(
        "import sys\n"
        "if '--version' in sys.argv: print('graftlm 1.0')\n"
        "else: raise SystemExit('it does not start')\n"
    )
    commit(clone, "does not start")
    (clone / "pyproject.toml").write_text("no toml")
    commit(clone, "cannot be installed")
    broken = guard(clone, "--base", "HEAD~2", "--head", "HEAD~1")
    other = guard(clone, "--base", "HEAD~2")

    assert broken.returncode == 2, broken.stdout + broken.stderr
    assert "the commit of 'now' failed at 'start'" in broken.stderr and "it does not start" in broken.stderr
    assert "round 2" not in broken.stderr
    assert other.returncode == 2
    assert "could not be installed" in other.stderr
