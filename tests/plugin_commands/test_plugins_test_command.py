"""`graftlm plugins test`: the conformance suites of a package, from its source or installed, in a helper."""

from __future__ import annotations

from pathlib import Path

from plugin_packages import EXAMPLES, run_graftlm

_OP = """
import torch
from graftlm.layers import SiluAndMul

class Swiglu(SiluAndMul):
    def forward_cpu(self, x):
        {body}

    forward_oot = forward_cpu
"""


def write_source(folder: Path, body: str) -> Path:
    """Write a source tree that replaces SiluAndMul."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "acme-op"\nversion = "1.0"\n\n[project.entry-points."graftlm.custom_ops"]\n'
        '"graftlm.layers.activation.SiluAndMul" = "acme_op:Swiglu"\n'
    )
    (folder / "acme_op.py").write_text(_OP.format(body=body))
    return folder


def test_a_sound_source_tree_passes(ask):
    """An example that is not installed here: every check of its suites passes or does not apply."""
    code, checks, errors = ask("test", str(EXAMPLES / "handmade_ops"))

    assert code == 0, errors
    assert {check["state"] for check in checks} <= {"passed", "skipped"}
    assert {check["suite"] for check in checks} == {"TestCustomOpSiluAndMul", "TestOpImplementationRmsNormHandmade"}


def test_wrong_numerics_are_named(tmp_path: Path):
    """The check, the subject and what the contract wants; the code is 1."""
    folder = write_source(tmp_path / "acme", "return x.chunk(2, dim=-1)[0]")
    done = run_graftlm("plugins", "test", str(folder))

    assert done.returncode == 1, done.stderr
    assert "acme_op:Swiglu" in done.stdout and "graftlm.ops.CustomOp wants:" in done.stdout
    assert " failed, " in done.stdout.splitlines()[-1]


def test_a_plugin_that_ends_the_process_has_failed(tmp_path: Path, ask):
    """The check that ran is named; the command lives."""
    folder = write_source(tmp_path / "acme", "import os; os._exit(3)")
    code, checks, _ = ask("test", str(folder))

    assert code == 1
    assert checks[-1]["state"] == "failed" and "ended" in checks[-1]["text"]
    assert checks[-1]["check"].startswith("test_")


def test_what_is_no_package_is_said(tmp_path: Path):
    """A folder without pyproject.toml, and a distribution that is not installed."""
    folder = run_graftlm("plugins", "test", str(tmp_path))
    missing = run_graftlm("plugins", "test", "no-such-distribution")

    assert folder.returncode == missing.returncode == 1
    assert "the folder has no pyproject.toml" in folder.stderr
    assert "no distribution 'no-such-distribution' is installed here" in missing.stderr
    assert "Traceback" not in folder.stderr + missing.stderr
