"""The pages for plugin authors: their signatures are the code's, and their examples run as they stand."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from plugin_packages import EXAMPLES, REPOSITORY, Site, build_wheels

from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.points import ALL_ROLES

FOLDER = REPOSITORY / "docs" / "plugins"
DOCUMENTED = (
    "platform_plugins", "general_plugins", "models", "custom_ops", "op_implementations", "attention_backends",
    "workers", "communicators", "quantization_methods", "model_loaders", "model_sources", "stat_logger_plugins",
    "endpoint_plugins",
)  # fmt: skip
POINTS = {point.name: point for point in ALL_POINTS if point.name in DOCUMENTED}
BLOCK = re.compile(r"(?:^`(?P<path>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def section(text: str, title: str) -> str:
    """Return what stands under a heading, or nothing."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1] if found else ""


def files_of(text: str) -> dict[str, str]:
    """Return the files that a page shows: blocks below a line that is a path and a colon."""
    return {m["path"]: m["text"] for m in BLOCK.finditer(text) if m["path"]}


def scripts_of(text: str) -> list[str]:
    """Return the Python that a page runs: blocks that are no files and no contract."""
    rest = text.replace(section(text, "Contract"), "")
    return [m["text"] for m in BLOCK.finditer(rest) if not m["path"] and m["language"] == "python"]


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """Write the package that a page shows; its folder has its name, as `build_wheels` wants it."""
    name = tomllib.loads(files["pyproject.toml"])["project"]["name"].replace("-", "_")
    for path, text in files.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / name


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the package of each page, as `pip install .` would, in one go; page -> wheel."""
    folder = tmp_path_factory.mktemp("pages")
    packages = [write_package(folder / "written", files_of(page(name))) for name in DOCUMENTED]
    return dict(zip(DOCUMENTED, build_wheels(packages, folder), strict=True))


def run_script(script: str, folder: Path, site: Site, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "example.py").write_text(script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env={**os.environ, **site.environment, "PATH": path, **env},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_plugin_docs_pages_tell_the_facts_of_their_point(name: str) -> None:
    """Group, processes, moment of import and default are those of contracts/points.py."""
    point, text = POINTS[name], page(name)
    roles = "all" if point.roles == ALL_ROLES else ", ".join(sorted(point.roles))

    for row in (
        f"| entry-point group | `{point.group}` |",
        f"| processes | {roles} |",
        f"| imported | {point.imported} |",
        f"| entry-point name | {'a key' if point.key else 'a label'}: ",
        f"| takes part | {'only when named' if point.opt_in else 'by default'}",
    ):
        assert row in text, row
    assert f'[project.entry-points."{point.group}"]' in text
    (example,) = re.findall(r"\| example package \| \[(\w+)\]", text)
    assert f'entry-points."{point.group}"]' in (EXAMPLES / example / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name != "general_plugins"])
def test_plugin_docs_contracts_are_the_code(name: str) -> None:
    """Each signature is exact, and none that a plugin may use or must write is missing."""
    (block,) = BLOCK.findall(section(page(name), "Contract"))
    shown = re.split(r"^# (graftlm[\w.]+)$", block[2], flags=re.M)[1:]
    assert shown
    for module, text in zip(shown[::2], shown[1::2], strict=True):
        for node in ast.parse(text).body:
            assert isinstance(node, ast.ClassDef)
            assert members(node) == members(real_class(module, node.name)), f"{module}.{node.name} in {name}.md"


def real_class(module: str, name: str) -> ast.ClassDef:
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    (found,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name]
    return found


def members(cls: ast.ClassDef) -> dict[str, str]:
    """Return each public member's declaration, without bodies and docstrings."""
    found = {"": ", ".join(map(ast.unparse, [*cls.bases, *cls.keywords]))}
    for node in cls.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not node.name.startswith("_") or node.name in ("__init__", "__call__"):
                    head = [ast.unparse(d) for d in node.decorator_list] + [type(node).__name__]
                    returns = ast.unparse(node.returns) if node.returns else ""
                    found[node.name] = f"{' '.join(head)} ({ast.unparse(node.args)}) -> {returns}"
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if not name.startswith("_"):
                    found[name] = ast.unparse(node)
    return found


@pytest.mark.parametrize("name", DOCUMENTED)
def test_plugin_docs_examples_run(name: str, tmp_path: Path, tiny_llama: Path, wheels: dict[str, Path]) -> None:
    """The package of the page is installed with every file of it, and its script does what the page says."""
    text = page(name)
    site = Site(tmp_path / "site").install(wheels[name])
    assert [file for file in files_of(text) if file != "pyproject.toml" and not (site.folder / file).exists()] == []
    (script,) = scripts_of(text)
    done = run_script(script, tmp_path, site, CHECKPOINT=str(tiny_llama), GRAFTLM_CACHE=str(tmp_path / "cache"))

    assert done.returncode == 0, done.stderr


def test_plugin_docs_index_has_every_point() -> None:
    """One table leads from each point to its page and its example."""
    index = page("README")

    for name in DOCUMENTED:
        assert f"[`{name}`]({name}.md)" in index
    assert [p.name for p in ALL_POINTS if f"`{p.name}`" not in index] == []


def test_plugin_docs_say_which_points_nothing_asks_for() -> None:
    """A point without a page is declared only, and both its declaration and the pages say so."""
    provisional = {point.name for point in ALL_POINTS if point.provisional}
    rows = (REPOSITORY / "docs" / "architecture.md").read_text().splitlines()

    for point in ALL_POINTS:
        if point.name not in (*DOCUMENTED, *provisional):
            assert point.imported.startswith("by nothing yet"), point.name
            (row,) = [row for row in rows if row.startswith("|") and f"`{point.name}`" in row]
            assert "by nothing yet" in row


def test_plugin_docs_from_vllm_name_what_exists() -> None:
    """Every path and flag of ours on the page for vLLM's authors, and every hook that bears the same name."""
    from graftlm.cli.serve import build_parser
    from graftlm.contracts.platform import Platform

    text = page("from-vllm")
    theirs = {"--ir-op-priority", "--additional-config"}
    groups = {point.group for point in ALL_POINTS}
    paths = set(re.findall(r"`(graftlm(?:\.\w+)+)`", text)) - groups
    hooks = re.findall(r"`(\w+)`", section(text, "Platform hooks").partition("bear the same names")[0])

    assert [path for path in sorted(paths) if not exists(path)] == []
    assert set(re.findall(r"`(--[\w-]+)", text)) - set(build_parser().flags()) - theirs == set()
    assert len(hooks) > 15 and [hook for hook in hooks if not hasattr(Platform, hook)] == []


def exists(path: str) -> bool:
    module, _, attribute = path.rpartition(".")
    try:
        importlib.import_module(path)
    except ImportError:
        return hasattr(importlib.import_module(module), attribute)
    return True
