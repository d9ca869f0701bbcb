"""What a flag or a hook names: a plugin's name, a plugin's target, or any class path."""

from __future__ import annotations

import pytest

from graftlm.contracts.points import COMMUNICATORS
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.plugins import UnknownPlugin, UnresolvedPath
from graftlm.plugins.named import load_named, plugin_named

SOURCE = "class Links: pass\nclass Other: pass"
CPU = {"platform_plugins": {"cpu": "graftlm.platforms.detectors:cpu"}}


@pytest.mark.parametrize("text", ["acme", "acme_links:Links", "acme_links.Links"])
def test_a_name_and_a_target_are_the_same_plugin(site, text):
    """Whichever the platform wrote, the plugin is the one that was used, and it says so."""
    site.add("graftlm", CPU, package="cpu_entry_points")
    site.add("acme-links", {"communicators": {"acme": "acme_links:Links"}}, source=SOURCE)
    host = bootstrap_frontend()
    found = load_named(COMMUNICATORS, text, what="get_device_communicator_cls")
    plugin = plugin_named(COMMUNICATORS, text)

    assert found.__name__ == "Links"
    assert plugin is not None and host.outcomes[plugin.identity].state == "active"


def test_a_path_that_no_plugin_publishes_is_imported_as_it_is(site):
    """A platform need not publish what only it names; a name must be known."""
    site.add("graftlm", CPU, package="cpu_entry_points")
    site.add("acme-links", {"communicators": {"acme": "acme_links:Links"}}, source=SOURCE)
    bootstrap_frontend()

    assert load_named(COMMUNICATORS, "acme_links:Other", what="a flag").__name__ == "Other"
    assert plugin_named(COMMUNICATORS, "acme_links:Other") is None
    with pytest.raises(UnknownPlugin, match="did you mean 'acme'"):
        load_named(COMMUNICATORS, "acne", what="a flag")
    with pytest.raises(UnresolvedPath, match="a flag 'acme_links:Missing'"):
        load_named(COMMUNICATORS, "acme_links:Missing", what="a flag")
