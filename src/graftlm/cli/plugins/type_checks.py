"""What an entry point's target must be, for each extension point; a problem is a sentence, "" means sound.

It runs in the helper process of `graftlm plugins doctor`, where contracts that need torch may be imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graftlm.contracts import points
from graftlm.contracts.scheduler import SCHEDULER_METHODS
from graftlm.plugins.spelling import kind_of

if TYPE_CHECKING:
    from graftlm.plugins import Plugin

Check = Callable[[Any, "Plugin"], str]


def type_problem(found: Any, plugin: Plugin) -> str:
    """Say why `found`, the target of `plugin`, cannot serve its extension point, or ""."""
    check = _CHECKS.get(plugin.point)
    return check(found, plugin) if check is not None else ""


def _callable(found: Any, plugin: Plugin) -> str:
    return "" if callable(found) else f"{plugin.value} is {found!r}; it must be callable without arguments"


def _class(found: Any, plugin: Plugin) -> str:
    return "" if isinstance(found, type) else f"{plugin.value} is {found!r}; it must be a class"


def _subclass_of(path: str) -> Check:
    def check(found: Any, plugin: Plugin) -> str:
        from graftlm.plugins import resolve_class_path

        contract = resolve_class_path(path)
        if not (isinstance(found, type) and issubclass(found, contract)):
            return f"{plugin.value} is {found!r}; it must subclass {path.replace(':', '.')}"
        if inspect.isabstract(found):
            return (
                f"{plugin.value} does not implement {', '.join(sorted(getattr(found, '__abstractmethods__', ())))}"
            )
        return ""

    return check


def _with_methods(*names: str) -> Check:
    def check(found: Any, plugin: Plugin) -> str:
        missing = [name for name in names if not callable(getattr(found, name, None))]
        return _class(found, plugin) or (f"{plugin.value} has no {', '.join(missing)}" if missing else "")

    return check


def _custom_op(found: Any, plugin: Plugin) -> str:
    from graftlm.plugins import UnresolvedPath, resolve_class_path

    try:
        replaced = resolve_class_path(plugin.name, what="entry point name")
    except UnresolvedPath as error:
        return f"the entry point's name must be the path of the layer that it replaces: {error}"
    if not (isinstance(found, type) and issubclass(found, replaced)) or found is replaced:
        return f"{plugin.value} is {found!r}; it must be a subclass of {plugin.name}, which it replaces"
    own, kept = getattr(found, "name", None), getattr(replaced, "name", None)
    if own != kept:
        return f"{plugin.value} has the op name {own!r} of its own; a replacement keeps {kept!r}"
    return ""


def _op_implementation(found: Any, plugin: Plugin) -> str:
    if "." not in plugin.name:
        return f"the entry point's name {plugin.name!r} must be op.provider, such as rms_norm.acme"
    return _subclass_of("graftlm.ops.implementation:OpImplementation")(found, plugin)


def _endpoint(found: Any, plugin: Plugin) -> str:
    from fastapi import APIRouter

    from graftlm.contracts.endpoint import EndpointPlugin

    if problem := _callable(found, plugin):
        return problem
    made = found()
    if not isinstance(made, EndpointPlugin):
        return f"{plugin.value} makes {kind_of(made)}; it must make an EndpointPlugin"
    router = APIRouter()
    made.attach_router(router)
    return "" if router.routes else "its attach_router adds no route"


_CHECKS: dict[str, Check] = {
    points.PLATFORM_PLUGINS.name: _callable,
    points.GENERAL_PLUGINS.name: _callable,
    points.MODELS.name: _with_methods("forward", "compute_logits", "load_weights"),
    points.CUSTOM_OPS.name: _custom_op,
    points.OP_IMPLEMENTATIONS.name: _op_implementation,
    points.WORKERS.name: _with_methods(
        "init_device", "load_model", "update_block_size", "get_kv_cache_spec", "determine_available_memory",
        "initialize_kv_cache", "execute_step", "shutdown",
    ),
    points.COMMUNICATORS.name: _subclass_of("graftlm.contracts.communicator:DeviceCommunicator"),
    points.ATTENTION_BACKENDS.name: _subclass_of("graftlm.contracts.attention:AttentionBackend"),
    points.QUANTIZATION_METHODS.name: _subclass_of("graftlm.contracts.quantization:QuantizationConfig"),
    points.MODEL_LOADERS.name: _subclass_of("graftlm.contracts.checkpoint:ModelLoader"),
    points.MODEL_SOURCES.name: _subclass_of("graftlm.contracts.checkpoint:ModelSource"),
    points.STAT_LOGGER_PLUGINS.name: _subclass_of("graftlm.contracts.stats:StatLogger"),
    points.ENDPOINT_PLUGINS.name: _endpoint,
    points.EXECUTORS.name: _subclass_of("graftlm.contracts.executor:Executor"),
    points.IO_PROCESSOR_PLUGINS.name: _callable,
    points.SCHEDULERS.name: _with_methods(*SCHEDULER_METHODS),
    points.TOOL_PARSERS.name: _class,
    points.REASONING_PARSERS.name: _class,
}  # fmt: skip
