"""Quantization methods by name, from `register_quantization_config` and from entry points; imports no torch.

It does not know how a method keeps its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from graftlm.contracts.points import QUANTIZATION_METHODS
from graftlm.contracts.quantization import QuantizationConfig
from graftlm.ops.build import find_build
from graftlm.ops.entry_points import available, find, load
from graftlm.plugins import Plugin, Registry, UnknownKey
from graftlm.plugins.slow_calls import calling_at_start

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.quantization import LinearMethod

ConfigT = TypeVar("ConfigT", bound=type[QuantizationConfig])

quantization_registry: Registry[type[QuantizationConfig]] = Registry(
    "quantization_methods", kind="quantization method"
)


def register_quantization_config(name: str) -> Callable[[ConfigT], ConfigT]:
    """Register a QuantizationConfig class under the name that `--quantization` and checkpoints use."""

    def decorate(cls: ConfigT) -> ConfigT:
        if not (isinstance(cls, type) and issubclass(cls, QuantizationConfig)):
            raise TypeError(f"quantization method {name!r} is {cls!r}; it must subclass QuantizationConfig")
        quantization_registry.register(name, cls)
        return cls

    return decorate


def quantization_names() -> list[str]:
    """Return the names of all methods, without importing one."""
    return sorted({*quantization_registry.names(), *available(QUANTIZATION_METHODS)})


def get_quantization_config(name: str) -> type[QuantizationConfig]:
    """Return the class of a method by its name."""
    if name in quantization_registry:
        return quantization_registry.get(name)
    if name in available(QUANTIZATION_METHODS):
        found = load(QUANTIZATION_METHODS, name)
        if not (isinstance(found, type) and issubclass(found, QuantizationConfig)):
            raise TypeError(f"quantization method {name!r} is {found!r}; it must subclass QuantizationConfig")
        return found
    raise UnknownKey("quantization method", name, known=quantization_names())


def quantization_of(config: EngineConfig) -> QuantizationConfig | None:
    """Build the method that the user or the checkpoint asks for; None for plain weights."""
    section: dict[str, Any] = config.model.hf_config.get("quantization_config") or {}
    name = config.model.quantization or section.get("quant_method")
    return build_method(name, config.model.hf_config) if name else None


def build_method(name: str, hf_config: dict[str, Any]) -> QuantizationConfig:
    """Build a method by its name for a checkpoint's config."""
    cls = get_quantization_config(name)
    with calling_at_start(_owner(name), "QuantizationConfig.from_checkpoint"):
        return cls.from_checkpoint(hf_config)


def _owner(name: str) -> Plugin | str:
    """Return who provides a method: the distribution that registered it, or the plugin that publishes it."""
    if name in quantization_registry:
        return quantization_registry.owner(name)
    return find(QUANTIZATION_METHODS, name)


def linear_method_for(
    layer: torch.nn.Module, *, quant_config: QuantizationConfig | None, prefix: str
) -> LinearMethod:
    """Choose how `layer` keeps its weight: by `quant_config`, else by the build's configuration, else plain."""
    from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod

    build = find_build()
    if quant_config is None and build is not None:
        if "quant_config" not in build.state:
            build.state["quant_config"] = quantization_of(build.config)
        quant_config = build.state["quant_config"]
    method = quant_config.get_linear_method(layer, prefix) if quant_config is not None else None
    return method or UnquantizedLinearMethod()
