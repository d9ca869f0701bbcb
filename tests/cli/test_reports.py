from __future__ import annotations

import json
import re

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.cli.main import main
from graftlm.plugins import find_host
from graftlm.plugins.current import hold_host


@pytest.fixture(autouse=True)
def leave_host_and_logging_alone(monkeypatch):
    """A command bootstraps the process; the tests after it must not notice."""
    before = find_host()
    monkeypatch.setattr("graftlm.processes.logs.configure_logging", lambda *args: None)
    yield
    hold_host(before)


def test_plugins_are_listed_with_state_and_reason(capsys):
    """The engine's own are plugins like any other."""
    assert main(["plugins", "--json"]) == 0
    rows = {(row["point"], row["name"]): row for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert rows["platform_plugins", "cpu"]["state"] == "active"
    assert rows["attention_backends", "TORCH_PAGED"]["distribution"] == "graftlm"

    assert main(["plugins", "--disable-plugin", "TORCH_PAGED"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["point", "name", "distribution", "version", "state", "reason", "ms"]
    assert any("TORCH_PAGED" in line and "disabled" in line for line in table)


def test_plugins_are_listed_even_when_the_start_would_be_refused(capsys):
    """The list is where somebody looks for the cause."""
    assert main(["plugins", "--plugins", "no-such-plugin"]) == 1

    shown = capsys.readouterr()
    assert "platform_plugins" in shown.out
    assert "no-such-plugin" in shown.err.splitlines()[-1]


def test_doctor_reports_machine_platform_and_versions(capsys, monkeypatch):
    """Everything that a bug report needs, and no secret."""
    monkeypatch.setenv("GRAFTLM_API_KEY", "secret-key")
    monkeypatch.setenv("GRAFTLM_PLUGIN", "typo")

    assert main(["doctor", "--json"]) == 0

    text = capsys.readouterr().out
    report = json.loads(text)
    assert report["platform"]["name"] == "cpu"
    assert report["memory"]["total_mib"] > 0
    assert report["versions"]["torch"]
    assert "GRAFTLM_PLUGIN is set, and graftlm does not read it" in report["problems"]
    assert "secret-key" not in text


def test_doctor_counts_the_engines_own_plugins_and_lists_the_others(tmp_path):
    """In aligned rows, as everything else; one that cannot take part is a problem, said once for a distribution."""
    site = Site(tmp_path / "site").write(
        "acme",
        entry_points={"models": {"ArchOne": "acme:One"}, "general_plugins": {"two": "acme:two"}},
        files={"acme.py": "def two(): pass\n"},
    )
    site.write("old", entry_points={"models": {"A": "old:A", "B": "old:B"}}, files={"old/__init__.py": ""})
    (site.folder / "old" / "graftlm_plugin.toml").write_text("api = '<1.0'")

    text = run_graftlm("doctor", env={**site.environment, "GRAFTLM_CACHE": str(tmp_path / "cache")}).stdout

    assert f"cache         {tmp_path / 'cache'}" in text
    section, _, problems = text.partition("plugins:\n")[2].partition("\nproblems:")
    assert re.search(r"^  built in  \d+ of graftlm \d.*which `graftlm plugins` lists$", section, re.MULTILINE)
    rows = [line for line in section.splitlines() if " acme " in line]
    assert len(rows) == 2 and len({row.index(" acme ") for row in rows}) == 1
    (line,) = [line for line in problems.splitlines() if "of old 1.0" in line]
    assert "refused: A, B of old 1.0: " in line


def test_doctor_shows_a_problem_instead_of_failing(capsys):
    """A broken plugin set-up is what the doctor is called for."""
    assert main(["doctor", "--platform", "no-such-platform"]) == 0

    text = capsys.readouterr().out
    assert "no-such-platform" in text.split("problems:")[1]
