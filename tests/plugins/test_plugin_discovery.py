"""Discovery: what is found, in which order, and that nothing is imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.fingerprint import distribution_facts


def test_plugins_are_found_in_a_fixed_order_without_importing_them(site) -> None:
    """Metadata is enough, and the order is by point, distribution and name."""
    site.add("zeta", {"general_plugins": {"b": "zeta:f", "a": "zeta:f"}}, source="raise RuntimeError('imported')")
    site.add("alpha", {"general_plugins": {"z": "alpha:f"}, "models": {"Arch": "alpha:Model"}})

    found = discover(ALL_POINTS)

    assert [p.identity for p in found.plugins] == [
        "general_plugins=alpha:z",
        "general_plugins=zeta:a",
        "general_plugins=zeta:b",
        "models=alpha:Arch",
    ]
    assert "zeta" not in sys.modules


def test_a_second_copy_of_a_distribution_is_reported_and_not_used(site) -> None:
    """The first copy on sys.path counts; the other one is named with its place."""
    site.add("acme", {"general_plugins": {"old": "acme:f"}}, version="1.0", folder="late")
    used = site.add("acme", {"general_plugins": {"new": "acme:f"}}, version="2.0", folder="early")

    found = discover(ALL_POINTS)

    assert [p.name for p in found.plugins] == ["new"]
    assert [(s.version, s.used_version, s.used_location) for s in found.shadows] == [("1.0", "2.0", str(used))]


def test_a_stale_egg_info_does_not_win_over_installed_metadata(site, caplog) -> None:
    """An egg-info folder first on the path is the shadow, not the truth."""
    site.add("acme", {"general_plugins": {"real": "acme:f"}}, folder="site")
    site.add("acme", {"general_plugins": {"stale": "acme:f"}}, folder="src", egg=True)

    found = discover(ALL_POINTS)

    assert [p.name for p in found.plugins] == ["real"]
    assert found.shadows[0].location.endswith("acme.egg-info")
    assert "cure='install it again, or remove the folder'" in caplog.text


def test_an_old_egg_info_beside_the_engines_own_source_is_not_worth_a_word(site, caplog) -> None:
    """Whoever works on the engine has one; it counts for nothing, so nothing differs."""
    site.add("graftlm-kernels", {"workers": {"new": "graftlm_kernels:f"}}, folder="site")
    site.add("graftlm-kernels", {"workers": {"old": "graftlm_kernels:f"}}, folder="src", egg=True)

    found = discover(ALL_POINTS)

    assert [p.name for p in found.plugins] == ["new"]
    assert not found.shadows[0].differs
    assert "plugin_distribution_shadowed" not in caplog.text


def test_the_same_folder_twice_on_the_path_is_no_shadow(site) -> None:
    """One copy seen twice is one copy."""
    site.add("acme", {"general_plugins": {"one": "acme:f"}})
    site.folders.append(site.folders[0])
    sys.path.insert(0, str(site.folders[0]))

    found = discover(ALL_POINTS)

    assert (len(found.plugins), found.shadows) == (1, ())


def test_a_slip_in_a_group_name_is_said_with_the_nearest_point(site, caplog) -> None:
    """A group with our prefix that no point has is a warning, not silence."""
    site.add("acme", {"platform_plugin": {"x": "acme:f"}})

    found = discover(ALL_POINTS)

    assert found.unknown_groups[0].group == "graftlm.platform_plugin"
    assert "graftlm.platform_plugins" in found.unknown_groups[0].hint
    assert "plugin_group_unknown" in caplog.text


def test_the_manifest_is_read_without_importing_the_package(site) -> None:
    """Roles, order and replacements come from graftlm_plugin.toml."""
    manifest = """
        api = ">=1.0,<2"
        [plugin.ops]
        roles = ["worker"]
        after = ["other"]
        replaces = ["x"]
        [settings.threads]
        type = "int"
        default = 4
    """
    site.add("acme", {"general_plugins": {"ops": "acme:f"}}, source="raise RuntimeError", manifest=manifest)

    found = discover(ALL_POINTS)

    plugin = found.plugins[0]
    assert (plugin.roles, plugin.after, plugin.replaces) == (("worker",), ("other",), ("x",))
    assert found.settings["acme"]["threads"].default == 4
    assert "acme" not in sys.modules


def test_a_plugin_for_another_api_is_refused_with_range_version_and_cure(site) -> None:
    """The range is checked before anything is imported."""
    site.add("acme", {"general_plugins": {"ops": "acme:f"}}, manifest='api = ">=2.0,<3"')

    refused = discover(ALL_POINTS).plugins[0].refused

    assert ">=2.0,<3" in refused
    assert "1.0" in refused
    assert "install a version" in refused


def test_slips_in_a_manifest_refuse_the_plugin(site) -> None:
    """A broken file, an unknown field, a table without entry point: each is named."""
    site.add("bad-toml", {"general_plugins": {"a": "bad_toml:f"}}, manifest="api = ")
    site.add("bad-field", {"general_plugins": {"a": "bad_field:f"}}, manifest="apis = '1'")
    site.add("bad-table", {"general_plugins": {"ops": "bad_table:f"}}, manifest="[plugin.opz]\nroles = ['worker']")
    site.add("bad-role", {"stat_logger_plugins": {"a": "bad_role:f"}}, manifest="[plugin.a]\nroles = ['worker']")

    refused = {p.distribution: p.refused for p in discover(ALL_POINTS).plugins}

    assert "not valid" in refused["bad-toml"]
    assert "apis" in refused["bad-field"]
    assert "did you mean 'ops'" in refused["bad-table"]
    assert "'worker'" in refused["bad-role"]


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ("apis = '1'", "there is no key 'apis'; did you mean 'api'?"),
        ("api_version = '1'", "there is no key 'api_version'; did you mean 'api'?"),
        ("roles = ['worker']", "there is no key 'roles'; it stands in a table [plugin.NAME]"),
        ("befor = ['a']", "there is no key 'befor'; did you mean 'before'? It stands in a table [plugin.NAME]"),
        ("colour = 1", "there is no key 'colour'; it may have api, plugin, choices, settings"),
        ("api = 1", "api = 1 is an int; write a range, such as '>=1.0,<2'"),
        ("plugin = 3", "plugin = 3 is an int; write a table, [plugin.NAME]"),
        ("[plugin.a]\nRoles = []", "[plugin.a] there is no key 'Roles'; did you mean 'roles'?"),
        ("[plugin.a]\nbefore = 'b'", "[plugin.a] before = 'b' is a str; write a list of strings"),
        ("[plugin.a]\nafter = [1]", "[plugin.a] after holds 1, an int; write a list of strings"),
        ("[plugin.a]\nroles = ['wrker']", "[plugin.a] roles: there is no role 'wrker'; did you mean 'worker'?"),
        ("plugin.a = 1", "plugin.a = 1 is an int; write a table, [plugin.a]"),
        ("[choices]\nquantization = 'x'", "[choices] quantization = 'x' is a str; write a list of strings"),
        ("[settings.n]\ntype = 'integer'", "[settings.n] type = 'integer'; write one of str, int, float, bool"),
        ("[settings.n]\nhelp = 1", "[settings.n] help = 1 is an int; write text"),
        (
            "[settings.n]\ntype = 'int'\ndefault = 'x'",
            "[settings.n] default = 'x' is a str, and its type is int; write a whole number such as 8",
        ),
        ("[settings.n]\ntype = 'float'\ndefault = true", "default = True is a bool, and its type is float"),
    ],
)
def test_a_wrong_manifest_is_refused_with_file_key_value_and_cure(site, manifest, says) -> None:
    """Whatever is wrong with it, one sentence leads to the place."""
    site.add("acme", {"general_plugins": {"a": "acme:f"}}, manifest=manifest)
    refused = discover(ALL_POINTS).plugins[0].refused

    assert refused.startswith(f"its manifest {site.folder() / 'acme' / 'graftlm_plugin.toml'} is not valid: ")
    assert says in refused


def test_a_sound_manifest_with_every_key_is_accepted(site) -> None:
    """The checks refuse nothing that the grammar allows; a whole number is a float, too."""
    manifest = """
        api = ">=1.0,<2"
        [plugin.a]
        roles = ["worker", "engine"]
        before = ["b"]
        after = []
        replaces = ["k"]
        [choices]
        quantization = ["acme_int8"]
        [settings.share]
        type = "float"
        default = 1
        help = "A share."
        [settings.path]
        [settings.fast]
        type = "bool"
        default = true
    """
    site.add("acme", {"general_plugins": {"a": "acme:f"}}, manifest=manifest)
    found = discover(ALL_POINTS)

    assert found.plugins[0].refused == ""
    assert sorted(found.settings["acme"]) == ["fast", "path", "share"]


def test_an_editable_plugin_has_its_manifest_and_its_files_hashed_where_an_import_finds_them(site) -> None:
    """Its RECORD lists a .pth file only; a change of the source is a change of the fingerprint."""
    info = site.add("acme", {"general_plugins": {"ops": "acme:f"}})
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    (info / "RECORD").write_text("__editable__.acme.pth,,\n")
    source = site.folder("checkout") / "acme"
    (site.folder() / "acme").rename(source)
    (source / "graftlm_plugin.toml").write_text("[plugin.ops]\nroles = ['worker']")
    importlib.invalidate_caches()

    plugins = discover(ALL_POINTS).plugins
    before = distribution_facts(plugins)
    (source / "__init__.py").write_text("# changed")

    assert plugins[0].roles == ("worker",)
    assert before[0].files
    assert distribution_facts(plugins) != before


def test_an_installed_plugins_hash_covers_the_files_that_it_records(site) -> None:
    """What pip writes anew each time does not count, what a person edits does."""
    info = site.add("acme", {"general_plugins": {"ops": "acme:f"}})
    plugins = discover(ALL_POINTS).plugins
    before = distribution_facts(plugins)
    (info / "INSTALLER").write_text("pip")
    assert distribution_facts(plugins) == before

    (site.folder() / "acme" / "__init__.py").write_text("# changed")

    assert distribution_facts(plugins) != before
