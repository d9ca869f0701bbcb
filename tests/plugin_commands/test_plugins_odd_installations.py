"""What is odd about an installation and no error: `plugins list`, `doctor` and `explain` say it."""

from __future__ import annotations

import pytest
from plugin_packages import Site, run_graftlm


def install(site: Site, manifest: str) -> Site:
    return site.write(
        "acme-ops",
        entry_points={"general_plugins": {"ops": "acme_ops:register"}, "modles": {"Acme": "acme_ops.model:Acme"}},
        files={"acme_ops/__init__.py": "def register(): ...\n", "acme_ops/graftlm_plugin.toml": manifest},
    )


def test_an_entry_point_in_an_unknown_group_is_listed_as_refused(installed, ask):
    """With the nearest group: its author looks at this list first."""
    install(installed, "")
    code, told, _ = ask("list")
    text = run_graftlm("plugins", "list", env=installed.environment).stdout
    explained = run_graftlm("plugins", "explain", "plugin", "Acme", env=installed.environment).stdout
    (row,) = [row for row in told["plugins"] if row["point"] == "modles"]

    assert code == 0
    assert (row["name"], row["distribution"], row["version"]) == ("Acme", "acme-ops", "1.0")
    assert (row["state"], row["target"]) == ("refused", "acme_ops.model:Acme")
    assert row["reason"].startswith(
        "no extension point has the group 'graftlm.modles'; did you mean 'graftlm.models'"
    )
    assert row["reason"] in text and row["reason"] in explained


def test_it_is_listed_where_nothing_could_be_decided_too(installed, ask):
    """A flag that names nobody ends the decision early; the slip may be the very cause."""
    install(installed, "")
    code, told, errors = ask("list", "--plugins", "Acme")

    assert code == 1
    assert "graftlm.modles" in errors
    assert [row["state"] for row in told["plugins"] if row["point"] == "modles"] == ["refused"]


@pytest.mark.parametrize(
    ("manifest", "note"),
    [
        ("before = ['opps-base']", "before = ['opps-base'] binds nothing: no plugin of general_plugins that is"),
        ("after = ['OTHERS']", "is called so; did you mean 'others'"),
        ("after = ['cpu']", "and graftlm:cpu is one of platform_plugins; order binds plugins of one point"),
    ],
)
def test_an_order_that_binds_nobody_is_noted(installed, ask, manifest, note):
    """The other plugin may rightly be absent: the plugin runs, and list and doctor say what binds nothing."""
    install(installed, f"[plugin.ops]\n{manifest}\n")
    installed.write(
        "others", entry_points={"general_plugins": {"others": "others:f"}}, files={"others.py": "def f(): ...\n"}
    )
    _, told, _ = ask("list")
    (row,) = [row for row in told["plugins"] if row["name"] == "ops"]
    text = run_graftlm("plugins", "list", env=installed.environment).stdout
    code, examined, _ = ask("doctor")
    (verdict,) = [row for row in examined["plugins"] if row["name"] == "ops"]

    assert row["state"] == "active" and len(row["notes"]) == 1 and note in row["notes"][0]
    assert f"note: acme-ops:ops (general_plugins): {row['notes'][0]}" in text
    assert code == 0 and verdict["notes"] == row["notes"]


def test_an_order_that_binds_somebody_is_not_noted(installed, ask):
    """Also where that one is disabled: it is installed."""
    install(installed, "[plugin.ops]\nafter = ['others']\n")
    installed.write(
        "others", entry_points={"general_plugins": {"others": "others:f"}}, files={"others.py": "def f(): ...\n"}
    )
    _, told, _ = ask("list", "--disable-plugin", "others")

    assert [row["notes"] for row in told["plugins"] if row["name"] == "ops"] == [[]]


@pytest.mark.parametrize("name", ["ops", "acme-ops:ops"])
def test_an_order_that_names_the_plugin_itself_is_refused(installed, ask, name):
    """It is a slip in any case; the place and the cure are said."""
    install(installed, f"[plugin.ops]\nbefore = ['{name}']\n")
    _, told, _ = ask("list")
    (row,) = [row for row in told["plugins"] if row["name"] == "ops"]
    done = run_graftlm("plugins", "list", "--enable-plugin", "ops", env=installed.environment)

    assert row["state"] == "refused"
    assert f"graftlm_plugin.toml, [plugin.ops] before = [{name!r}] names the plugin itself" in row["reason"]
    assert done.returncode == 1 and "names the plugin itself; name another plugin" in done.stderr


def test_a_package_that_only_vllm_would_read_is_noted(installed, ask):
    """Its author is told which groups count, also where a flag names the plugin; vLLM itself is no surprise."""
    for name in ("acme-vllm", "vllm", "acme-both"):
        groups = {"general_plugins": {"mine": "acme_both:f"}} if name == "acme-both" else {}
        installed.write(name, entry_points=groups, files={f"{name.replace('-', '_')}.py": "def f(): ...\n"})
        entries = installed.folder / f"{name.replace('-', '_')}-1.0.dist-info" / "entry_points.txt"
        entries.write_text(entries.read_text() + "[vllm.general_plugins]\nacme_ops = acme_vllm:f\n")
    said = "acme-vllm 1.0 publishes vllm.general_plugins; graftlm reads graftlm.*: see docs/plugins/from-vllm.md"
    _, told, _ = ask("list")
    text = run_graftlm("plugins", "list", env=installed.environment).stdout
    code, refused, errors = ask("list", "--enable-plugin", "acme_ops")

    assert told["foreign"] == [said]
    assert text.splitlines()[-1] == f"note: {said}"
    assert code == 1 and refused["foreign"] == [said]
    assert "no installed plugin is called 'acme_ops'" in errors and said in errors
