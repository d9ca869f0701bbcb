"""Selection: one set of rules for all points."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.plugins import (
    AmbiguousPlugin,
    DuplicatePlugin,
    Plugin,
    PluginCycle,
    PluginRefused,
    SelectionConflict,
    UnknownPlugin,
)
from graftlm.plugins.discovery import Discovery
from graftlm.plugins.selection import Selection, select


def plugin(identity: str, **facts) -> Plugin:
    """Make a plugin from "point=distribution:name"."""
    point, _, label = identity.partition("=")
    distribution, _, name = label.partition(":")
    facts.setdefault("key", point in ("models", "attention_backends"))
    facts.setdefault("opt_in", point in ("endpoint_plugins", "logits_processors"))
    facts.setdefault("built_in", distribution == "graftlm")
    return Plugin(
        point=point, name=name, distribution=distribution, version="1.0", value=f"{distribution}:f", **facts
    )


INSTALLED = [
    plugin("platform_plugins=graftlm:cpu"),
    plugin("platform_plugins=acme:npu"),
    plugin("general_plugins=acme:ops"),
    plugin("general_plugins=beta:tools"),
    plugin("endpoint_plugins=beta:admin"),
    plugin("models=beta:Arch"),
]


def enabled(installed: list[Plugin], **flags) -> set[str]:
    """Names of what a selection enables."""
    return {d.plugin.name for d in select(Discovery(plugins=tuple(installed)), Selection(**flags)) if d.enabled}


def test_unset_enables_all_but_what_must_be_named() -> None:
    """Everything on by default; opt-in points stay out."""
    assert enabled(INSTALLED) == {"cpu", "npu", "ops", "tools", "Arch"}


def test_plugins_means_exactly_these_and_leaves_the_engines_own_on() -> None:
    """`--plugins ops` keeps ops and built-ins; blanks do not count."""
    assert enabled(INSTALLED, plugins=[" ops ", ""]) == {"cpu", "ops"}
    assert enabled(INSTALLED, plugins=["ops, admin"]) == {"cpu", "ops", "admin"}
    assert enabled(INSTALLED, plugins=[]) == {"cpu"}


def test_one_enabled_or_disabled_moves_nothing_else() -> None:
    """--enable-plugin and --disable-plugin are one change."""
    assert enabled(INSTALLED, enable_plugin=["admin"]) == {"cpu", "npu", "ops", "tools", "Arch", "admin"}
    assert enabled(INSTALLED, disable_plugin=["beta:tools"]) == {"cpu", "npu", "ops", "Arch"}
    assert enabled(INSTALLED, disable_plugin=["platform_plugins=cpu"]) == {"npu", "ops", "tools", "Arch"}


def test_a_whole_distribution_is_left_out_by_its_name() -> None:
    """All of its plugins, or those of one point, however its name is spelled; a plugin of that name comes first."""
    kernels = [plugin(f"{point}=some-kernels:{point}") for point in ("models", "workers")]
    installed = [*INSTALLED, *kernels]

    assert enabled(installed, disable_plugin=["Some_Kernels"]) == enabled(INSTALLED)
    assert enabled(installed, disable_plugin=["workers=some-kernels"]) == enabled(INSTALLED) | {"models"}
    namesake = plugin("general_plugins=beta:some-kernels")
    assert enabled([*installed, namesake], disable_plugin=["some-kernels"]) == enabled(installed)
    with pytest.raises(UnknownPlugin, match="did you mean 'some-kernels'"):
        enabled(installed, disable_plugin=["some-kernel"])
    with pytest.raises(UnknownPlugin, match="graftlm is the engine itself; leave out one plugin of it"):
        enabled(installed, disable_plugin=["graftlm"])
    with pytest.raises(UnknownPlugin, match="'some-kernels'"):  # what opens doors is named one by one
        enabled(installed, enable_plugin=["some-kernels"])


def test_a_reason_names_what_its_flag_accepts() -> None:
    """A name that two distributions use is told with the distribution."""
    installed = (*INSTALLED, plugin("general_plugins=acme:admin"))
    (admin,) = [d for d in select(Discovery(plugins=installed), Selection()) if d.plugin.label == "beta:admin"]

    assert admin.reason.endswith("--enable-plugin beta:admin")


def test_safe_mode_leaves_only_the_engines_own() -> None:
    """--no-plugins disables all others, with the reason."""
    decisions = select(Discovery(plugins=tuple(INSTALLED)), Selection(no_plugins=True))

    assert {d.plugin.name for d in decisions if d.enabled} == {"cpu"}
    assert {d.reason for d in decisions if d.plugin.name == "ops"} == {"--no-plugins"}


def test_an_unknown_name_stops_with_the_nearest_names_at_once() -> None:
    """A slip among a thousand plugins is answered with a few dozen calls for each, not for each pair."""
    many = [plugin(f"general_plugins=d{i}:plugin_{i}") for i in range(1000)]
    calls = Counter()

    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        with pytest.raises(UnknownPlugin, match=r"--enable-plugin.*'opps'.*did you mean 'ops'"):
            enabled(INSTALLED + many, enable_plugin=["opps"])
    finally:
        sys.setprofile(before)
    with pytest.raises(UnknownPlugin, match=r"models=ops"):
        enabled(INSTALLED, plugins=["models=ops"])

    assert 0 < calls["call"] < 50 * len(many)


def test_a_bare_name_of_two_distributions_is_ambiguous_only_in_a_flag() -> None:
    """Both labels load; naming them needs the distribution."""
    both = [*INSTALLED, plugin("general_plugins=beta:ops")]

    assert len([d for d in select(Discovery(plugins=tuple(both)), Selection()) if d.plugin.name == "ops"]) == 2
    with pytest.raises(AmbiguousPlugin, match="acme:ops, beta:ops"):
        enabled(both, disable_plugin=["ops"])
    assert "tools" in enabled(both, disable_plugin=["beta:ops"])


def test_two_distributions_on_one_key_are_an_error_that_names_both() -> None:
    """Key names are unique, unless one declares that it replaces the other."""
    second = plugin("models=gamma:Arch")
    with pytest.raises(DuplicatePlugin, match=r"'Arch' is claimed by beta 1\.0 .* and by gamma 1\.0"):
        enabled([*INSTALLED, second])

    assert "Arch" in enabled([*INSTALLED, second], disable_plugin=["gamma:Arch"])
    for claim in ("Arch", "beta:Arch"):
        replacing = plugin("models=gamma:Arch", replaces=(claim,))
        decisions = select(Discovery(plugins=(*INSTALLED, replacing)), Selection())
        states = {d.plugin.label: (d.state, d.reason) for d in decisions if d.plugin.name == "Arch"}
        assert states["gamma:Arch"][0] == "on"
        assert states["beta:Arch"] == ("disabled", "replaced by gamma:Arch")


def test_flags_that_contradict_each_other_are_refused() -> None:
    """Enabled and disabled at once, or safe mode with a list."""
    with pytest.raises(SelectionConflict, match="acme:ops is both enabled and disabled"):
        enabled(INSTALLED, enable_plugin=["ops"], disable_plugin=["ops"])
    with pytest.raises(SelectionConflict, match="--plugins and --no-plugins"):
        enabled(INSTALLED, plugins=["ops"], no_plugins=True)


def test_a_refused_plugin_stops_the_start_only_when_it_was_named() -> None:
    """Merely installed: listed as refused. Named: the start ends."""
    old = plugin("general_plugins=acme:old", refused="it works with plugin API <1")

    decision = next(d for d in select(Discovery(plugins=(old,)), Selection()))
    assert (decision.state, decision.reason) == ("refused", old.refused)
    with pytest.raises(PluginRefused, match=r"'old' of acme 1\.0 .*API <1"):
        enabled([old], enable_plugin=["old"])


def test_order_follows_edges_then_names_whatever_the_file_system_says() -> None:
    """before/after bind; everything else is by distribution and name."""
    plugins = [
        plugin("general_plugins=a:one", after=("c:three",)),
        plugin("general_plugins=b:two"),
        plugin("general_plugins=c:three"),
        plugin("general_plugins=d:four", before=("two", "not-installed")),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(plugins)
        decisions = select(Discovery(plugins=tuple(plugins)), Selection())
        assert [d.plugin.name for d in decisions] == ["three", "one", "four", "two"]


def test_a_circle_of_edges_is_an_error_that_shows_it() -> None:
    """The circle is printed, without those that merely hang on it."""
    plugins = (
        plugin("general_plugins=a:one", after=("two",)),
        plugin("general_plugins=b:two", after=("one",)),
        plugin("general_plugins=c:three", after=("two",)),
    )

    with pytest.raises(PluginCycle, match=r"(a:one -> b:two -> a:one|b:two -> a:one -> b:two)"):
        select(Discovery(plugins=plugins), Selection())


def test_a_contradiction_names_the_variable_that_nobody_sees(tmp_path) -> None:
    """--no-plugins against an exported GRAFTLM_PLUGINS: the error says where the other one comes from."""
    source = {"acme.py": "def register(): pass\n"}
    site = Site(tmp_path).write("acme", entry_points={"general_plugins": {"ops": "acme:register"}}, files=source)

    done = run_graftlm("plugins", "--no-plugins", env={**site.environment, "GRAFTLM_PLUGINS": "ops"})

    assert done.returncode == 1
    assert "--plugins and --no-plugins were both given" in done.stderr
    assert "[--plugins is set by GRAFTLM_PLUGINS]" in done.stderr
