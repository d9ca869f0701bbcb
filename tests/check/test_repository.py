"""What must hold of the files themselves."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import graftlm

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "graftlm"
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".cfg", ".txt", ""}
#: Folders that exist on one machine only.
ABSOLUTE = re.compile(r"(?<![\w.$~/-])/(?:work|root|home/\w+|Users/\w+|tmp/dl|tmp/brief|mnt/\w+)(?=[/\s\"'`)]|$)")


def tracked_files() -> list[Path]:
    """Files under version control; outside of a checkout there is nothing to judge."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("no checkout")
    files = [ROOT / name for name in done.stdout.split("\0") if name]
    return [file for file in files if file.is_file() and file.suffix in TEXT]


def test_every_package_is_on_the_architecture_page():
    """A stranger finds each folder explained."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists())

    assert [name for name in packages if f"{name}/" not in page] == []


def test_no_file_names_a_folder_of_one_machine():
    """The repository works wherever it is cloned."""
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in tracked_files()
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if ABSOLUTE.search(line)
    ]

    assert found == []


def test_every_module_says_what_it_does():
    """A module docstring is the first thing a reader sees."""
    silent = [
        str(file.relative_to(ROOT))
        for file in PACKAGE.rglob("*.py")
        if not file.read_text().lstrip().startswith(('"""', 'r"""'))
    ]

    assert silent == []


def test_files_stay_readable():
    """At most 250 lines as a rule; nothing beyond 320."""
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py")}

    assert {name: length for name, length in lengths.items() if length > 320} == {}


def test_every_exported_name_exists():
    """`__all__` and the lazy `__getattr__` beside it agree."""
    assert [name for name in graftlm.__all__ if not hasattr(graftlm, name)] == []


def test_every_test_begins_with_a_sentence():
    """The first line of a test says what must hold."""
    pattern = re.compile(
        r'^( *)(?:async )?def test_\w+\((?:[^()]|\([^()]*\))*\)(?: -> \w+)?:\n(?! *"""\S)', re.MULTILINE
    )
    found = [
        f"{file.relative_to(ROOT)}: {match[0].strip().splitlines()[0]}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for match in pattern.finditer(file.read_text())
    ]

    assert found == []
