"""The host: loading on demand, general plugins as transactions, blame, settings, the report."""

from __future__ import annotations

import logging
import sys

import pytest

from graftlm.contracts.points import ALL_POINTS, GENERAL_PLUGINS, MODELS, STAT_LOGGER_PLUGINS
from graftlm.plugins import (
    AmbiguousPlugin,
    InvalidSetting,
    NoPluginHost,
    PluginFailed,
    Registry,
    Role,
    UnknownPlugin,
    calling,
    current_host,
    record,
    settings,
)
from graftlm.plugins.discovery import discover
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plugin_config import read_settings
from graftlm.plugins.selection import Selection, select

THINGS: Registry[object] = Registry("things", kind="thing")


def make_host(*, config: tuple[str, ...] = (), role: Role = Role.FRONTEND, **flags) -> PluginHost:
    """Do what the bootstrap does, without platforms."""
    discovery = discover(ALL_POINTS)
    decisions = select(discovery, Selection(**flags))
    enabled = [d.plugin for d in decisions if d.enabled]
    values = read_settings(config, discovery.settings, plugins=enabled)
    host = PluginHost(
        ALL_POINTS, role=role, process="test", discovery=discovery, decisions=decisions, settings=values
    )
    host.install()
    return host


REGISTERS = """
from test_plugin_host import THINGS
class Thing: pass
def register():
    THINGS.register("acme thing", Thing)
def fails():
    THINGS.register("half a thing", Thing)
    raise RuntimeError("no driver")
"""


def test_a_process_without_a_host_says_what_to_call(site) -> None:
    """current_host is an error with the cure; record does nothing."""
    record("anything", plugin="x", fact=1)

    with pytest.raises(NoPluginHost, match="bootstrap_frontend"):
        current_host()


def test_a_plugin_is_imported_when_asked_for_and_once(site) -> None:
    """Others stay on disk; the ledger holds the import and its time."""
    site.add("acme", {"models": {"Arch": "acme:Net"}}, source="class Net: pass")
    site.add("beta", {"models": {"Brch": "beta:Net"}}, source="raise RuntimeError")
    host = make_host()

    found = host.load(MODELS, "Arch")

    assert host.load(MODELS, "Arch") is found
    assert host.available(MODELS) == ["Arch", "Brch"]
    assert "beta" not in sys.modules
    assert host.ledger.count("loaded", point="models") == 1


def test_an_unknown_name_says_what_there_is_and_what_was_left_out(site) -> None:
    """A disabled plugin of that name is part of the answer."""
    site.add("acme", {"models": {"Arch": "acme:Net"}})
    host = make_host(disable_plugin=["Arch"])

    with pytest.raises(UnknownPlugin, match="acme:Arch is disabled: --disable-plugin names it"):
        host.load(MODELS, "Arch")


def test_a_failing_import_names_plugin_distribution_version_process_phase_and_cure(site) -> None:
    """The original error is the cause, with its traceback."""
    site.add("acme", {"models": {"Arch": "acme:Net"}}, version="2.1", source="raise RuntimeError('no driver')")
    host = make_host()

    with pytest.raises(PluginFailed) as caught:
        host.load(MODELS, "Arch")

    text = str(caught.value)
    for part in ("'Arch'", "acme 2.1", "process 'test'", "import of acme:Net", "no driver", "plugin acme:Arch"):
        assert part in text
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_load_all_keeps_order_and_leaves_out_what_fails(site, caplog) -> None:
    """Merely installed and failing: a warning. Named and failing: the end."""
    site.add("beta", {"stat_logger_plugins": {"b": "beta:Log"}}, source="class Log: pass")
    site.add("acme", {"stat_logger_plugins": {"a": "acme:Log"}}, source="raise RuntimeError('boom')")

    assert [p.name for p, _ in make_host().load_all(STAT_LOGGER_PLUGINS)] == ["b"]
    assert "boom" in caplog.text
    sys.modules.pop("acme", None)
    with pytest.raises(PluginFailed):
        make_host(enable_plugin=["a"]).load_all(STAT_LOGGER_PLUGINS)


def test_labels_of_two_distributions_both_load(site) -> None:
    """They are shown, and asked for, as distribution:name."""
    site.add("acme", {"stat_logger_plugins": {"log": "acme:Log"}}, source="class Log: pass")
    site.add("beta", {"stat_logger_plugins": {"log": "beta:Log"}}, source="class Log: pass")
    host = make_host()

    assert host.available(STAT_LOGGER_PLUGINS) == ["acme:log", "beta:log"]
    assert host.load(STAT_LOGGER_PLUGINS, "beta:log").__module__ == "beta"
    with pytest.raises(AmbiguousPlugin):
        host.load(STAT_LOGGER_PLUGINS, "log")


def test_general_plugins_run_once_and_their_registrations_bear_their_owner(site) -> None:
    """A second call, or a second host in the process, does not run them again but has their registrations."""
    source = REGISTERS + "\ncalls = []\ndef count():\n    calls.append(1)\n    register()\n"
    site.add("acme", {"general_plugins": {"count": "acme:count"}}, source=source)
    host = make_host()
    host.run_general_plugins()
    host.run_general_plugins()

    assert (THINGS.names(), THINGS.owner("acme thing")) == (["acme thing"], "acme")
    assert host.ledger.count("registered", registry="things", owner="acme") == 1

    second = make_host()
    assert THINGS.names() == []
    second.run_general_plugins()
    assert (THINGS.names(), sys.modules["acme"].calls) == (["acme thing"], [1])


def test_an_installed_plugin_that_fails_is_a_warning_and_leaves_nothing_behind(site, caplog) -> None:
    """The start goes on, the plugin is listed as failed."""
    site.add("acme", {"general_plugins": {"bad": "acme:fails", "good": "acme:register"}}, source=REGISTERS)
    host = make_host()

    with caplog.at_level(logging.WARNING):
        host.run_general_plugins()

    assert THINGS.names() == ["acme thing"]
    states = {row["name"]: row["state"] for row in host.describe()["plugins"]}
    assert states == {"bad": "failed", "good": "active"}
    assert "no driver" in caplog.text
    assert "acme 1.0" in caplog.text


def test_a_named_plugin_that_fails_stops_the_start(site) -> None:
    """What the user asked for must work; the exception says who raised it."""
    site.add("acme", {"general_plugins": {"bad": "acme:fails"}}, source=REGISTERS)
    host = make_host(enable_plugin=["bad"])

    with pytest.raises(PluginFailed, match="no driver") as caught:
        host.run_general_plugins()

    assert THINGS.names() == []
    assert "raised by plugin 'bad' (distribution acme 1.0)" in caught.value.__cause__.__notes__[0]


def test_registrations_of_a_shared_module_survive_the_first_users_failure(site) -> None:
    """A module's decorators run once: the next plugin that uses the module gets what they registered."""
    shared = "from test_plugin_host import THINGS\nclass Shared: pass\nTHINGS.register('shared', Shared)\n"
    site.add("vendorlib", {}, source=shared)
    site.add(
        "acme",
        {"general_plugins": {"a": "acme:fails"}},
        source="def fails():\n    import vendorlib\n    raise RuntimeError",
    )
    site.add("beta", {"general_plugins": {"b": "beta:run"}}, source="def run():\n    import vendorlib\n")

    make_host(disable_plugin=["b"]).run_general_plugins()
    assert THINGS.names() == []
    make_host().run_general_plugins()

    assert THINGS.names() == ["shared"]


def test_decorators_of_a_failing_module_leave_nothing_behind(site) -> None:
    """What the import itself registered is undone too."""
    source = "from test_plugin_host import THINGS\nTHINGS.register('early', object)\nraise RuntimeError('late')\n"
    site.add("acme", {"general_plugins": {"a": "acme:f"}}, source=source)

    make_host().run_general_plugins()

    assert THINGS.names() == []


def test_roles_of_a_manifest_decide_where_a_plugin_runs(site) -> None:
    """A worker-only plugin runs when the process takes that role."""
    manifest = "[plugin.w]\nroles = ['worker']\n"
    site.add("acme", {"general_plugins": {"w": "acme:register"}}, source=REGISTERS, manifest=manifest)
    host = make_host()
    host.run_general_plugins()
    assert THINGS.names() == []

    host.take_role(Role.WORKER)

    assert THINGS.names() == ["acme thing"]


def test_a_plugin_reads_its_settings_while_it_runs(site) -> None:
    """Declared defaults, with --plugin-config over them; slips are errors with the nearest name."""
    manifest = "[settings.threads]\ntype = 'int'\ndefault = 4\n[settings.fast]\ntype = 'bool'\ndefault = false\n"
    site.add("acme", {"general_plugins": {"ops": "acme:f"}}, manifest=manifest)
    host = make_host(config=("ops.threads=8", "acme.fast = yes"))

    with calling(host.find(GENERAL_PLUGINS, "ops"), "hook"):
        assert settings() == {"threads": 8, "fast": True}
    for text, problem in [
        ("ops.thread=8", "did you mean 'threads'"),
        ("ops.threads=many", "'many' is not of type int; write a whole number"),
        ("ops.fast=maybe", "'maybe' is not of type bool; write true or false"),
        ("OPS.threads=1", "did you mean 'ops'"),
        ("opz.threads=1", "did you mean 'ops'"),
        ("threads=1", "NAME.KEY=VALUE"),
    ]:
        with pytest.raises(InvalidSetting, match=problem):
            make_host(config=(text,))


def test_describe_lists_every_plugin_with_state_reason_and_time(site) -> None:
    """The shape of GET /plugins."""
    site.add(
        "acme",
        {"general_plugins": {"ops": "acme:register"}, "endpoint_plugins": {"admin": "acme:f"}},
        source=REGISTERS,
    )
    site.add("old", {"models": {"Old": "old:Net"}}, manifest="api = '<1.0'")
    host = make_host()
    host.run_general_plugins()

    told = host.describe()

    rows = {row["name"]: row for row in told["plugins"]}
    assert list(rows["ops"]) == [
        "point", "name", "distribution", "version", "target", "state", "reason", "processes", "registrations", "ms",
        "notes",
    ]  # fmt: skip
    assert rows["ops"]["state"] == "active"
    assert rows["ops"]["processes"] == {"test": "active"}
    assert rows["ops"]["registrations"] == ["things: acme thing -> acme:Thing"]
    assert rows["ops"]["ms"] > 0
    assert (rows["admin"]["state"], rows["Old"]["state"]) == ("disabled", "refused")
    assert "--enable-plugin admin" in rows["admin"]["reason"]
    assert told["plan"]["fingerprint"] == host.plan.fingerprint
