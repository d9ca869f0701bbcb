"""Names that plugins add to flags: what metadata and manifests say, and whether code kept to it; imports no plugin.

`--help` runs no plugin code, so a name that code registers is shown only if `[choices]` of the distribution's
graftlm_plugin.toml declares it. It knows no parser.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from graftlm.contracts import points
from graftlm.contracts.errors import StartupError
from graftlm.layers.quantization import quantization_names
from graftlm.plugins import ExtensionPoint, record
from graftlm.plugins.manifest import MANIFEST
from graftlm.plugins.spelling import nearest

if TYPE_CHECKING:
    from graftlm.plugins.discovery import Discovery
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)

#: Option path → the extension point whose entry points are names for the flag.
FLAGS: dict[str, ExtensionPoint[Any]] = {
    "plugins.platform": points.PLATFORM_PLUGINS,
    "model.quantization": points.QUANTIZATION_METHODS,
    "model.load_format": points.MODEL_LOADERS,
    "attention.attention_backend": points.ATTENTION_BACKENDS,
    "scheduler.scheduler_cls": points.SCHEDULERS,
    "parallel.worker_cls": points.WORKERS,
    "parallel.distributed_executor_backend": points.EXECUTORS,
}

#: Flags whose names code may register, and how to ask for those that are there.
_REGISTERED: dict[str, Callable[[], Iterable[str]]] = {"quantization": quantization_names}


class ChoiceNotRegistered(StartupError):
    """The platform declares a name for a flag that its code does not register."""


def installed_choices(discovery: Discovery) -> dict[str, dict[str, list[str]]]:
    """Return option path -> distribution -> names, of entry points and manifests; the engine's own come first."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, point in FLAGS.items():
        names: dict[str, set[str]] = {}
        for plugin in discovery.plugins:
            if plugin.point == point.name and not plugin.refused:
                names.setdefault(plugin.distribution, set()).add(plugin.name)
        for distribution, declared in discovery.choices.items():
            names.setdefault(distribution, set()).update(declared.get(path.rpartition(".")[2], ()))
        built_in = {p.distribution for p in discovery.plugins if p.built_in}
        in_order = sorted(names, key=lambda distribution: (distribution not in built_in, distribution))
        found[path] = {
            distribution: sorted(names[distribution]) for distribution in in_order if names[distribution]
        }
    return found


def check_declared_choices(host: PluginHost) -> None:
    """Hold what manifests declare against what was registered, once general plugins and platform have spoken.

    A name that the active platform's distribution declares and does not register stops the start; that of another
    distribution is a warning, and none if it belongs to a platform that was not taken.
    """
    if host.discovery is None:
        return
    enabled = {plugin.distribution for plugin in host.enabled_plugins}
    platforms = {plugin.distribution for plugin in host.plugins(points.PLATFORM_PLUGINS)}
    choice = host.platform_choice
    for distribution, declared in sorted(host.discovery.choices.items()):
        if distribution not in enabled:
            continue
        active = choice is not None and distribution == choice.distribution
        for flag, names in declared.items():
            for problem in _problems(flag, names):
                text = f"the {MANIFEST} of {distribution} declares {problem}"
                if active:
                    raise ChoiceNotRegistered(text)
                if distribution not in platforms:
                    record("choice_not_registered", distribution=distribution, flag=flag, problem=problem)
                    logger.warning("choice_not_registered %s", text)


def _problems(flag: str, names: Iterable[str]) -> list[str]:
    if flag not in _REGISTERED:
        cure = nearest(flag, _REGISTERED) or f"code registers names for {', '.join(_REGISTERED)}"
        return [f"choices for {flag!r}, which code cannot register; {cure}"]
    there = set(_REGISTERED[flag]())
    flag_text = f"--{flag.replace('_', '-')}"
    return [
        f"{name!r} for {flag_text}, and nothing registers it; register it in pre_register_and_update or in a "
        "general plugin, or take it out of [choices]"
        for name in names
        if name not in there
    ]
