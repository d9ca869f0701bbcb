"""Which architectures there are and which class computes each, without importing torch.

It does not build models, and imports a model class only when `load_class` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.contracts.errors import StartupError
from graftlm.contracts.model import ModelSpec
from graftlm.contracts.points import GENERAL_PLUGINS, MODELS
from graftlm.models.builtin import BUILT_IN_MODELS
from graftlm.models.checkpoints.errors import nearest
from graftlm.models.extensions import disabled_built_ins
from graftlm.models.inspect import spec_of
from graftlm.models.inspection import inspect_lazy
from graftlm.plugins.current import find_host
from graftlm.plugins.errors import DuplicateRegistration
from graftlm.plugins.registry import Registry, value_text

if TYPE_CHECKING:
    from graftlm.contracts.model import Model
    from graftlm.plugins.plugin import Plugin


class UnknownArchitecture(StartupError):
    def __init__(self, architectures: list[str], *, supported: list[str], hints: list[str]) -> None:
        near = "".join(nearest(name, supported) for name in architectures[:1])
        hint = "".join(f"; {hint}" for hint in hints)
        super().__init__(
            f"Model architectures {architectures} are not supported for now{near}{hint}; "
            f"supported architectures: {', '.join(supported)}; "
            "install a plugin that brings one, or name another with --hf-overrides"
        )


class _ModelRegistry:
    """Architectures by name: the engine's own, those that plugins registered, those of entry points."""

    def __init__(self) -> None:
        self._registry: Registry[type[Model]] = Registry(MODELS.name, kind="model architecture")
        for architecture, (class_path, _) in BUILT_IN_MODELS.items():
            self._registry.register(architecture, class_path)

    def register_model(self, architecture: str, model_cls: type[Any] | str, *, replace: bool = False) -> None:
        """Register a model class, or "module:Class" which is imported only in workers and in a helper process.

        A second class for one architecture is an error unless `replace` is set.
        """
        if not isinstance(architecture, str) or not architecture:
            raise TypeError(f"the architecture must be a name as in config.json, not {architecture!r}")
        if isinstance(model_cls, type):
            spec_of(model_cls, what=f"architecture {architecture!r}")
        elif not isinstance(model_cls, str):
            raise TypeError(f"architecture {architecture!r}: give a class or 'module:Class', not {model_cls!r}")
        self._registry.register(architecture, model_cls, replace=replace)

    def names(self) -> list[str]:
        """Name all architectures, sorted."""
        host = find_host()
        provided = host.available(MODELS) if host else ()
        return sorted({*self._registry.names(), *provided} - disabled_built_ins(MODELS))

    def resolve(self, architectures: list[str]) -> tuple[str, ModelSpec]:
        """Return the first known architecture and its facts, without importing a lazy class into this process."""
        known = self.names()
        for architecture in architectures:
            if architecture in known:
                return architecture, self.spec(architecture)
        raise UnknownArchitecture(list(architectures), supported=known, hints=_hints(architectures))

    def spec(self, architecture: str) -> ModelSpec:
        """Return the facts of a known architecture: from the table, from the class, or from a helper process."""
        target, owner = self._target(architecture)
        built_in = BUILT_IN_MODELS.get(architecture)
        if built_in is not None and target == built_in[0]:
            return built_in[1]
        if isinstance(target, str):
            return inspect_lazy(architecture, target, owner=owner)
        return spec_of(target, what=f"architecture {architecture!r}")

    def load_class(self, architecture: str) -> type[Model]:
        """Import and return the class; runs in workers."""
        if architecture not in self.names():
            raise UnknownArchitecture([architecture], supported=self.names(), hints=_hints([architecture]))
        plugin = self._entry_point(architecture)
        if plugin is not None:
            host = find_host()
            assert host is not None
            model_cls: Any = host.load_plugin(plugin)
        else:
            model_cls = self._registry.get(architecture)
        spec_of(model_cls, what=f"architecture {architecture!r}")
        return model_cls  # type: ignore[no-any-return]

    def origin(self, architecture: str) -> tuple[str, str]:
        """Return the class path of a known architecture and the distribution that owns it; imports nothing."""
        target, owner = self._target(architecture)
        return value_text(target), owner

    def _target(self, architecture: str) -> tuple[type[Model] | str, str]:
        """Return the class or its path, and the distribution that owns it."""
        if (plugin := self._entry_point(architecture)) is not None:
            return plugin.value, plugin.distribution
        return self._registry.peek(architecture), self._registry.owner(architecture)

    def _entry_point(self, architecture: str) -> Plugin | None:
        """Return the plugin whose entry point provides `architecture`, unless a registration does.

        Both at once are an error, except for one plugin that says the same twice, or that declares to replace.
        """
        host = find_host()
        found = [plugin for plugin in host.plugins(MODELS) if plugin.name == architecture] if host else []
        if not found:
            return None
        plugin = found[0]
        replaces = architecture in {name.rpartition(":")[2] for name in plugin.replaces}
        if replaces or architecture not in self._registry or self._registry.peek(architecture) == plugin.value:
            return plugin
        owner = self._registry.owner(architecture)
        if owner == plugin.distribution or plugin.built_in:
            return None
        claimant = f"the entry point of {plugin.description}"
        raise DuplicateRegistration("model architecture", architecture, holder=owner, claimant=claimant)


def _hints(architectures: list[str]) -> list[str]:
    """Say which installed plugins could help, were they enabled."""
    host = find_host()
    if host is None:
        return []
    hints = []
    for decision in host.decisions:
        plugin, wanted = decision.plugin, decision.plugin.name in architectures
        if decision.enabled or plugin.built_in:
            continue
        if plugin.point == MODELS.name and wanted:
            hints.append(f"the plugin {plugin.description} provides it but is {decision.state} ({decision.reason})")
        elif plugin.point == GENERAL_PLUGINS.name:
            hints.append(
                f"the plugin {plugin.description} may register it but is {decision.state} ({decision.reason})"
            )
    failed = [
        f"the plugin {plugin.description} failed ({host.outcomes[plugin.identity].reason})"
        for plugin in host.enabled_plugins
        if plugin.point == GENERAL_PLUGINS.name
        and plugin.identity in host.outcomes
        and host.outcomes[plugin.identity].state == "failed"
    ]
    return hints + failed


ModelRegistry = _ModelRegistry()
