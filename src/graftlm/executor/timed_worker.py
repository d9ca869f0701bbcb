"""Times what steps call of plugins' code, where --time-plugin-calls asks for it.

It wraps objects of a worker or executor that is ready for steps, so that where nobody asked there is nothing of it
in their way. It knows where plugins' objects are, and nothing of what they compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graftlm.contracts import points
from graftlm.plugins.call_times import plugin_of_code, timer_of
from graftlm.plugins.plugin import BUILT_IN_PACKAGES

if TYPE_CHECKING:
    from graftlm.contracts.executor import Executor
    from graftlm.contracts.worker import Worker
    from graftlm.plugins import ExtensionPoint, Plugin

#: What a step calls of a communicator, a backend, a linear method and a model.
_COLLECTIVES = ("all_reduce", "all_gather", "gather", "broadcast")
_ATTENTION = ("write_cache", "attend", "rotate_and_attend")
_LINEAR = ("apply", "embed")
_MODEL = ("forward", "compute_logits")


def time_worker(worker: Worker) -> None:
    """Time each plugin's part in the steps of a worker that has its KV cache."""
    from torch import nn

    from graftlm.distributed.groups import tp_communicator

    _time(worker, ("execute_step",), kind="worker", point=points.WORKERS)
    _time(tp_communicator(), _COLLECTIVES, kind="communicator", point=points.COMMUNICATORS)
    model = getattr(worker, "model", None)
    if isinstance(model, nn.Module):
        _time_backend_classes(model)
        _time_modules(model.modules())
        _time(model, _MODEL, kind="model", point=points.MODELS)
    sampler = getattr(getattr(worker, "model_runner", None), "sampler", None)
    if isinstance(sampler, nn.Module):
        _time_modules(sampler.modules())


def time_executor(executor: Executor) -> None:
    """Time the steps of an executor that a plugin brings; what its workers do is for them to time."""
    _time(executor, ("execute_step",), kind="executor", point=points.EXECUTORS)


def _time_modules(modules: Iterable[Any]) -> None:
    """Time replaced layers and ops, linear methods, attention backends and replaced kernel functions."""
    for module in modules:
        _time_layer(module)
        _time_kernels(module)
        _time(getattr(module, "linear_method", None), _LINEAR, kind="linear method",
              point=points.QUANTIZATION_METHODS)  # fmt: skip
        backend = getattr(module, "backend", None)
        if backend is not None and hasattr(module, "backend_cls"):
            _time_kernels(backend)
            _time(backend, _ATTENTION, kind="attention backend", point=points.ATTENTION_BACKENDS)


def _time_layer(module: Any) -> None:
    """Time a layer that replaces one of the engine's, and an op that a plugin computes."""
    choice = getattr(module, "choice", None)
    implementation = getattr(choice, "implementation", None)
    if choice is not None and implementation is not None:
        code, kind, hook, point = (
            type(implementation),
            "op implementation",
            choice.method,
            points.OP_IMPLEMENTATIONS,
        )
    elif choice is not None:
        code, kind, hook, point = type(module), "op", module.name, points.CUSTOM_OPS
    elif "asked_for" in vars(module):
        code, kind, hook, point = type(module), "layer", type(module).__name__, points.CUSTOM_OPS
    else:
        return
    plugin = plugin_of_code(code, point=point.name)
    if plugin is not None:
        timer_of(plugin, kind=kind, hook=hook).replace(module, "forward")


def _time_kernels(owner: Any) -> None:
    """Time kernel functions that a plugin replaced by name; whoever calls one holds it."""
    from torch import nn

    for name, held in list(getattr(owner, "__dict__", {}).items()):
        if name == "forward" or not callable(held) or isinstance(held, type | nn.Module):
            continue
        plugin = plugin_of_code(held, point=points.PLATFORM_PLUGINS.name)
        if plugin is not None and hasattr(held, "__qualname__"):
            timer_of(plugin, kind="kernel function", hook=held.__qualname__).replace(owner, name)


def _time_backend_classes(model: Any) -> None:
    """Time `build_metadata`, which is called once a step and not by a layer."""
    classes = dict.fromkeys(m.backend_cls for m in model.modules() if hasattr(m, "backend_cls"))
    for cls in classes:
        plugin = plugin_of_code(cls, point=points.ATTENTION_BACKENDS.name)
        _time_hook(cls, "build_metadata", plugin=plugin, kind="attention backend")


def _time(owner: Any, hooks: Iterable[str], *, kind: str, point: ExtensionPoint[Any]) -> None:
    """Time the hooks that an object of a plugin's class has."""
    plugin = None if owner is None else plugin_of_code(type(owner), point=point.name)
    for hook in hooks:
        _time_hook(owner, hook, plugin=plugin, kind=kind)


def _time_hook(owner: Any, hook: str, *, plugin: Plugin | None, kind: str) -> None:
    """Time one hook of a plugin's, with a word beside its name where the plugin inherits the engine's code."""
    found = getattr(owner, hook, None)
    package, _, rest = str(getattr(found, "__module__", "")).partition(".")
    if plugin is None or found is None or (package == "graftlm" and rest.startswith("contracts.")):
        return  # what the contract does by itself is nothing
    inherited = ", inherited" if package in BUILT_IN_PACKAGES else ""
    timer_of(plugin, kind=kind, hook=hook + inherited).replace(owner, hook)
