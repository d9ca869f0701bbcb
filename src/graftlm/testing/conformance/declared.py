"""Makes the suites of everything that an installed distribution declares: by extension point, never by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from graftlm.platforms.hooks import call_hook
from graftlm.plugins.plugin import Plugin, normalized
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.conformance import (
    AttentionBackendConformance,
    CommunicatorConformance,
    CustomOpConformance,
    EndpointConformance,
    GeneralPluginConformance,
    ModelConformance,
    ModelLoaderConformance,
    ModelSourceConformance,
    OpImplementationConformance,
    PlatformConformance,
    QuantizationConformance,
    StatLoggerConformance,
    WorkerConformance,
)
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.suite import Suite


def suites_for(distribution: str | FakeDistribution) -> dict[str, type[Suite]]:
    """Return a suite class for each thing that a distribution declares, by class name.

    A string names an installed one; `FakeDistribution.from_source(folder)` is one that is not installed yet.

    What a general plugin registers counts as declared. In a test module:
    `globals().update(suites_for("my-plugin"))`.
    """
    name = distribution if isinstance(distribution, str) else distribution.name
    with plugin_host(distribution) as host:
        plugins = [p for p in host.known_plugins if normalized(p.distribution) == normalized(name)]
    if not plugins:
        raise LookupError(
            f"the distribution {name!r} declares no plugin here; install it (pip install -e .) and look at "
            "`graftlm plugins`"
        )
    found: dict[str, type[Suite]] = {}
    for plugin in plugins:
        facts = {
            "__module__": __name__,
            "declared_as": f"{plugin.point}={plugin.name} of {plugin.distribution} {plugin.version}",
        }
        for base, name, attributes in _suites_of(plugin, distribution, beside=plugins):
            label = f"Test{_words(base.__name__.removesuffix('Conformance'))}{_words(name)}"
            found.setdefault(label, type(label, (base,), {**facts, **attributes}))
    return found


def _suites_of(
    plugin: Plugin, distribution: str | FakeDistribution, *, beside: Sequence[Plugin]
) -> Iterator[tuple[type[Suite], str, dict[str, Any]]]:
    """Yield (suite, name, attributes) for one entry point; `beside` are all of its distribution."""
    simple: dict[str, type[Suite]] = {
        "communicators": CommunicatorConformance, "models": ModelConformance,
    }  # fmt: skip
    with_settings: dict[str, type[Suite]] = {
        "stat_logger_plugins": StatLoggerConformance, "endpoint_plugins": EndpointConformance,
        "model_loaders": ModelLoaderConformance, "model_sources": ModelSourceConformance,
    }  # fmt: skip
    match plugin.point:
        case point if point in simple:
            yield simple[point], plugin.name, {"subject": plugin.value}
        case "attention_backends":
            rotary = {p.name.partition(".")[0]: p.value for p in beside if p.point == "op_implementations"}
            facts = {"subject": plugin.value, "rotary_implementation": rotary.get("rotary_embedding")}
            yield AttentionBackendConformance, plugin.name, facts
        case point if point in with_settings:
            yield with_settings[point], plugin.name, {
                "subject": plugin.value, "distribution": distribution, "plugin": plugin.name,
            }  # fmt: skip
        case "quantization_methods":
            yield QuantizationConformance, plugin.name, {
                "subject": plugin.value, "distributions": (distribution,), "plugin": plugin.name,
            }  # fmt: skip
        case "workers":
            platforms = [p.name for p in beside if p.point == "platform_plugins" and _class_named_by(p)]
            yield WorkerConformance, plugin.name, {
                "subject": plugin.value, "distributions": (distribution,),
                "platform": platforms[0] if platforms else "cpu",
            }  # fmt: skip
        case "custom_ops":
            name = plugin.name.rpartition(".")[2]
            yield CustomOpConformance, name, {"subject": plugin.value, "replaces": plugin.name}
        case "op_implementations":
            op = plugin.name.rpartition(".")[0]
            yield OpImplementationConformance, plugin.name, {"subject": plugin.value, "op": op}
        case "platform_plugins":
            yield from _platform(plugin, distribution)
        case "general_plugins":
            attributes = {
                "subject": plugin.value,
                "roles": tuple(r for r in ("frontend", "worker") if r in plugin.roles),
            }
            yield GeneralPluginConformance, plugin.name, attributes
            yield from _registered(plugin, distribution)


def _platform(
    plugin: Plugin, distribution: str | FakeDistribution
) -> Iterator[tuple[type[Suite], str, dict[str, Any]]]:
    """Yield the platform that the detector names here, and what its hooks name and register; a detector that
    declines has nothing to test.
    """
    path = _class_named_by(plugin)
    if path is None:
        return
    yield PlatformConformance, plugin.name, {
        "subject": path, "detector": plugin.value, "distributions": (distribution,),
    }  # fmt: skip
    cls = resolve_class_path(path)
    with plugin_host(distribution, platform=plugin.name) as host:
        communicator = cls.get_device_communicator_cls()
        call_hook("pre_register_and_update", None)
        events = [e.facts for e in host.ledger.of("registered") if e.facts.get("via") == "hook"]
    if _is_of(communicator, plugin):
        yield CommunicatorConformance, communicator.rpartition(":")[2], {"subject": communicator}
    yield from _suites_of_registered(events, distribution)


def _registered(
    plugin: Plugin, distribution: str | FakeDistribution
) -> Iterator[tuple[type[Suite], str, dict[str, Any]]]:
    """Yield what a general plugin registers in a worker."""
    with plugin_host(distribution, role="worker") as host:
        events = [e.facts for e in host.ledger.of("registered") if e.plugin == plugin.label]
    yield from _suites_of_registered(events, distribution)


def _suites_of_registered(
    events: Sequence[dict[str, Any]], distribution: str | FakeDistribution
) -> Iterator[tuple[type[Suite], str, dict[str, Any]]]:
    """Yield models, replacements of ops, and quantization methods that code registered."""
    for facts in events:
        attributes, key = {"subject": facts["value"]}, facts["key"]
        match facts["registry"]:
            case "models":
                yield ModelConformance, key, attributes
            case "custom_ops":
                yield CustomOpConformance, key.rpartition(".")[2], {**attributes, "replaces": key}
            case "quantization_methods":
                more = {"distributions": (distribution,), "plugin": key}
                yield QuantizationConformance, key, {**attributes, **more}


def _class_named_by(plugin: Plugin) -> str | None:
    """Return the class path that a detector answers on this machine."""
    answer = resolve_class_path(plugin.value)()
    path = answer[0] if isinstance(answer, tuple) else answer
    found: str | None = path if isinstance(path, str) else getattr(path, "class_path", None)
    return found


def _is_of(path: str, plugin: Plugin) -> bool:
    return path.partition(":")[0].partition(".")[0] == plugin.package


def _words(name: str) -> str:
    """Spell a plugin's name as a part of a class name."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+|_", name))
