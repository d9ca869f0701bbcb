"""What the pages say must be so: links lead somewhere, commands exist, blocks run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_packages import Site, build_wheels, run_graftlm

from graftlm.cli.main import COMMANDS
from graftlm.contracts.points import ALL_POINTS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in text.splitlines() if line.split("#")[0].strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_links_lead_somewhere(page):
    """Relative links of all pages."""
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_commands_exist(page):
    """Every `graftlm` command and `make` target in a sh block, with its flags."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        match [word for word in words if "=" not in word or word.startswith("-")]:
            case ["make", *goals]:
                assert set(goals) <= targets, words
            case ["graftlm" | ".venv/bin/graftlm", command, *rest]:
                assert command in (*COMMANDS, "--version", "--help"), words
                known = _flags(command)
                assert {word.split("=")[0] for word in rest if re.match("--[a-z]", word)} <= known, words


def _flags(command: str) -> set[str]:
    """Name the flags of a command, its sub-commands, and for those that run another one all of `serve`'s."""
    if command not in COMMANDS:
        return set()
    from importlib import import_module

    module = import_module(f"graftlm.cli.{command}")
    flags = set(module.build_parser().flags())
    for name in getattr(module, "SUBCOMMANDS", ()):
        flags |= set(module.load_subcommand(name).build_parser().flags())
    return flags | _flags("serve") if hasattr(module, "SUBCOMMANDS") else flags


def test_docs_name_every_extension_point():
    """A plugin author finds all of them on one page."""
    page = (ROOT / "docs" / "architecture.md").read_text()

    assert [point.name for point in ALL_POINTS if f"`{point.name}`" not in page] == []


@pytest.mark.demo
@pytest.mark.parametrize(
    "code", blocks(ROOT / "README.md", "python"), ids=lambda code: code.strip().splitlines()[0]
)
def test_readme_blocks_run(code, tmp_path, demo_path):
    """What the README shows works when it is pasted."""
    script = tmp_path / "block.py"
    script.write_text(code)

    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path, timeout=240)


def test_the_readme_asks_for_a_torch_that_is_kept():
    """One of another version would be replaced by whatever pip prefers."""
    wanted = re.search(r'"(torch[^"]+)",', (ROOT / "pyproject.toml").read_text())[1]

    assert f"pip install '{wanted}' --index-url`" in (ROOT / "README.md").read_text()


def test_the_readmes_plugin_works(tmp_path, tiny_llama):
    """Its two files, installed as it says, serve a model as it says."""
    section = (ROOT / "README.md").read_text().split("## A plugin")[1].split("\n## ")[0]
    for text in re.findall(r"^```\w+\n(# calm/.*?)^```", section, re.MULTILINE | re.DOTALL):
        file = tmp_path / text.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    site = Site(tmp_path / "site").install(*build_wheels([tmp_path / "calm"], tmp_path))
    overrides = shlex.split(re.search(r"^graftlm serve demo (--hf-overrides .*)$", section, re.MULTILINE)[1])

    done = run_graftlm("run", str(tiny_llama), "-p", "hi", "--max-tokens", "3", *overrides, env=site.environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_changelog_names_the_version():
    """Keep a Changelog: the newest entry is this version or unreleased."""
    from graftlm.version import __version__

    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    assert newest[1] in ("Unreleased", __version__)


def test_docs_tables_are_what_the_code_says():
    """Flags, variables, routes, fields and error codes; `make docs` writes them anew."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, f"{done.stdout}{done.stderr}; run `make docs`"


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=lambda p: p.name
)
def test_docs_name_files_that_there_are(page):
    """Paths in backticks, from the root or from the package; what an example adds is not there yet."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    paths = re.findall(r"`((?:\w[\w.-]*/)+[\w.-]*)`", text)
    missing = [
        path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "src" / "graftlm"))
    ]

    assert missing == (["docs/plugins/greeters.md"] if page.name == "CONTRIBUTING.md" else [])


def test_the_examples_of_contributing_hold(tmp_path):
    """All of its Python, in one module and in order; the op passes the suite that every op must."""
    module = tmp_path / "test_contributing.py"
    parts = [
        *blocks(ROOT / "CONTRIBUTING.md", "python"),
        "from graftlm.testing.conformance import CustomOpConformance",
        "class TestSoftcap(CustomOpConformance):\n    subject = Softcap",
        "def test_model_and_point():\n    assert MistralForCausalLM.__mro__[1] is LlamaForCausalLM\n"
        "    assert GREETERS.group == 'graftlm.greeters'\n    assert callable(greet)",
    ]
    module.write_text("\n\n\n".join(parts))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(module)],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
