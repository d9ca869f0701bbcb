"""The registry: one rule for duplicates, owners, lazy values, freezing."""

from __future__ import annotations

import pytest

from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins import (
    DuplicateRegistration,
    LateRegistration,
    Plugin,
    Registry,
    Role,
    UnknownKey,
    UnresolvedPath,
    calling,
)
from graftlm.plugins.host import PluginHost
from graftlm.plugins.transaction import transaction


class Model:
    """Something to register."""


class Other:
    """Something else."""


ACME = Plugin(point="general_plugins", name="ops", value="acme:f", distribution="acme", version="1.0")


@pytest.fixture
def registry(site) -> Registry[type]:
    return Registry("models", kind="architecture")


def test_the_same_value_again_is_no_change(registry) -> None:
    """An object, or the path that names it, may be registered twice."""
    registry.register("A", Model)
    registry.register("A", Model)
    registry.register("A", f"{__name__}:Model")

    assert registry.get("A") is Model


def test_another_value_is_an_error_that_names_both_owners(registry) -> None:
    """Unless replace=True says that it is meant."""
    registry.register("A", Model)

    pattern = r"architecture 'A' .*test_plugin_registry.*acme.*replace=True"
    with pytest.raises(DuplicateRegistration, match=pattern), calling(ACME, "general plugin"):
        registry.register("A", Other)
    with calling(ACME, "general plugin"):
        registry.register("A", Other, replace=True)
    assert (registry.get("A"), registry.owner("A")) == (Other, "acme")


def test_a_manifest_may_declare_the_replacement(registry) -> None:
    """`replaces` in the manifest permits what replace=True permits."""
    registry.register("A", Model)
    declared = Plugin(
        point="general_plugins", name="ops", value="acme:f", distribution="acme", version="1.0", replaces=("A",)
    )

    with calling(declared, "general plugin"):
        registry.register("A", Other)

    assert registry.get("A") is Other


def test_a_lazy_value_is_imported_when_it_is_asked_for(registry, site) -> None:
    """`peek` shows the path, `get` imports it, and a wrong path is blamed on its key."""
    site.add("lazy-models", {}, source="class Net: pass")
    registry.register("Net", "lazy_models:Net")
    registry.register("Gone", "lazy_models:Gone")

    assert registry.peek("Net") == "lazy_models:Net"
    assert registry.get("Net").__name__ == "Net"
    with pytest.raises(UnresolvedPath, match=r"architecture 'Gone'.*lazy_models has no Gone"):
        registry.get("Gone")


def test_an_unknown_key_names_the_nearest(registry) -> None:
    """A slip is answered with what was meant."""
    registry.register("LlamaForCausalLM", Model)

    with pytest.raises(UnknownKey, match="unknown architecture 'LamaForCausalLM'; did you mean 'LlamaForCausalLM'"):
        registry.get("LamaForCausalLM")


def test_classes_are_keys_by_identity(registry) -> None:
    """Two classes of one name are two keys, shown by their paths."""
    twin = type("Model", (), {})
    registry.register(Model, Other)

    assert twin not in registry
    assert registry.names() == [f"{__name__}.Model"]


def test_a_registration_after_ready_is_an_error(registry) -> None:
    """Frozen registries still accept what they already hold."""
    host = PluginHost(ALL_POINTS, role=Role.FRONTEND, process="front end")
    host.install()
    registry.register("A", Model)
    host.freeze()

    registry.register("A", Model)
    with pytest.raises(LateRegistration, match=r"architecture 'B' .*too late"):
        registry.register("B", Model)


def test_a_failing_transaction_leaves_the_registry_as_it_was(registry) -> None:
    """Additions go, replacements are put back."""
    registry.register("A", Model)

    with pytest.raises(RuntimeError), calling(ACME, "general plugin"), transaction(ACME):
        registry.register("B", Other)
        registry.register("A", Other, replace=True)
        assert registry.get("A") is Other
        raise RuntimeError

    assert registry.names() == ["A"]
    assert registry.get("A") is Model
