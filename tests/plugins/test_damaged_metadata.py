"""Metadata as it lies on real machines: half-written, in another encoding, with names that nobody can type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.cli.plugins.table import print_table
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.errors import InvalidSetting
from graftlm.plugins.plugin_config import read_settings

SOUND = "def register(): pass\n"


def test_one_damaged_distribution_is_refused_with_its_file_and_stops_nobody_else(tmp_path) -> None:
    """Whatever lies in a metadata folder, the commands work, and say which plugin is refused and why."""
    site = Site(tmp_path)
    site.write("sound", entry_points={"general_plugins": {"sound": "sound:register"}}, files={"sound.py": SOUND})
    group = b"[graftlm.general_plugins]\n"
    _raw(tmp_path, "other", group + b"x = \xff\xfe:register\n")
    _raw(tmp_path, "lines", group + b"x = lines:register\nhalf a li\n")
    _raw(
        tmp_path, "nameless", group + b"x = nameless:register\n", metadata=b"Metadata-Version: 2.1\nVersion: 1.0\n"
    )
    _raw(
        tmp_path, "versionless", group + b"x = v:register\n", metadata=b"Metadata-Version: 2.1\nName: versionless\n"
    )
    _raw(tmp_path, "empty", group + b"x = empty:register\n", metadata=None)
    _raw(tmp_path, "unrelated", b"[console_scripts]\n\xff = a:b\n")

    done = run_graftlm("plugins", "--json", env=site.environment)

    assert (done.returncode, done.stderr) == (0, "")
    rows = [r for r in json.loads(done.stdout)["plugins"] if not r["distribution"].startswith("graftlm")]
    states = {(r["distribution"], r["name"]): r["state"] for r in rows}
    assert states.pop(("sound", "sound")) == "active"
    assert set(states.values()) == {"refused"}
    reasons = {r["distribution"]: r["reason"] for r in rows}
    assert "other-1.0.dist-info/entry_points.txt cannot be read ('utf-8' codec" in reasons["other"]
    assert "a line is not NAME = VALUE" in reasons["lines"]
    assert "no readable Name; install nameless again" in reasons["nameless"]
    assert "no readable Version; install versionless again" in reasons["versionless"]
    assert "no readable Name; install empty again" in reasons["empty"]


def test_a_platform_whose_metadata_is_damaged_does_not_end_on_another_device(tmp_path) -> None:
    """It cannot be asked what it is, so the start says so, unless the device is named."""
    entry = b"[graftlm.platform_plugins]\nacme = acme:detect\nhalf a li\n"
    _raw(tmp_path, "acme", entry)
    environment = Site(tmp_path).environment

    refused = run_graftlm("plugins", env=environment)

    assert refused.returncode == 1
    assert "a line is not NAME = VALUE" in refused.stderr
    assert run_graftlm("plugins", "--platform", "cpu", env=environment).returncode == 0


@pytest.mark.parametrize("name", ["a,b", "a:b", "\x1b[31mred", "n" * 129])
def test_a_name_that_no_flag_can_name_is_refused(site, name: str) -> None:
    """Commas, colons and control characters in names would make two meanings of one flag."""
    site.add("acme", {"general_plugins": {name: "acme:f"}})

    (plugin,) = discover(ALL_POINTS).plugins

    assert "it is called" in plugin.refused


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("x = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("#" * 70000, "longer than 65536 bytes"),
        ("[settings.'a.b']\n", "name it without dots, blanks and ="),
        ("[settings.n]\ntype = 'float'\ndefault = nan\n", "is not a finite number"),
        ("[settings.n]\ntype = 'int'\ndefault = 99999999999999999999\n", "has more than 64 bits"),
    ],
)
def test_a_manifest_that_cannot_be_used_refuses_its_plugin(site, manifest: str, said: str) -> None:
    """However it is broken, it is that plugin's fault, and the reason is short."""
    site.add("acme", {"general_plugins": {"ops": "acme:f"}}, manifest=manifest)

    (plugin,) = discover(ALL_POINTS).plugins

    assert said in plugin.refused
    assert len(plugin.refused) < 500


@pytest.mark.parametrize("given", ["acme.n=99999999999999999999", "acme.f=nan", "acme.f=1e999"])
def test_a_setting_that_cannot_travel_is_an_error(site, given: str) -> None:
    """Numbers that neither the plan nor JSON can hold are refused where they are given."""
    manifest = "[settings.n]\ntype = 'int'\n[settings.f]\ntype = 'float'\n"
    site.add("acme", {"general_plugins": {"ops": "acme:f"}}, manifest=manifest)
    found = discover(ALL_POINTS)

    with pytest.raises(InvalidSetting, match=r"64 bits|finite"):
        read_settings([given], found.settings, plugins=found.plugins)


def test_a_cell_of_a_table_steers_no_terminal_and_stays_in_its_row(capsys) -> None:
    """Control characters are spelled out, and a long cell is cut."""
    print_table(("name", "reason"), [{"name": "a\x1b[31m", "reason": "one\ntwo " + "x" * 9000}])

    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2
    assert lines[1].startswith(r"a\x1b[31m  one\ntwo xxx")
    assert len(lines[1]) < 500
    assert lines[1].endswith("…")


def _raw(
    folder: Path,
    name: str,
    entry_points: bytes,
    *,
    metadata: bytes | None = b"Metadata-Version: 2.1\nVersion: 1.0\n",
) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_bytes(entry_points)
    if metadata is not None:
        named = name in ("nameless", "versionless")
        (info / "METADATA").write_bytes(metadata if named else metadata + f"Name: {name}\n".encode())
