"""What `graftlm plugins explain`'s helper process says of an op's part in kept decode steps; it builds nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.contracts.points import ATTENTION_BACKENDS, OP_IMPLEMENTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graftlm.plugins.host import PluginHost


def part_in_kept_steps(host: PluginHost, layer: Any, methods: Iterable[str]) -> str:
    """Say whether calls of `layer`, computed by `methods`, belong to the steps a backend keeps, or split them."""
    from graftlm.ops.attention.selector import backends_in_use

    in_use = backends_in_use()  # of the model, or of a layer of none
    keepers = [plugin.name for plugin in host.plugins(ATTENTION_BACKENDS) if _keeps_steps(host, plugin.name)]
    keepers = [name for name in keepers if not in_use or name in in_use]
    if not keepers:
        return f"attention backend {', '.join(in_use)} keeps none" if in_use else "no attention backend keeps any"
    said = []
    for keeper in keepers:
        inside = _is_captured(host, layer, methods, keeper)
        said.append(
            f"part of the native calls that {keeper} runs as one"
            if inside
            else f"{keeper} splits them here: it runs from Python in each, unchanged"
        )
    return "; ".join(said)


def _is_captured(host: PluginHost, layer: Any, methods: Iterable[str], keeper: str) -> bool:
    from graftlm.ops.custom_op import CustomOp

    if not issubclass(layer, CustomOp):  # it calls others, and they are asked for themselves
        return str(layer.__module__).partition(".")[0] == "graftlm"
    published = {plugin.name for plugin in host.plugins(OP_IMPLEMENTATIONS)}
    own = [method for method in methods if method in published]
    return bool(own) and all(keeper in _implementation(host, name).captured_by for name in own)


def _keeps_steps(host: PluginHost, name: str) -> bool:
    from graftlm.contracts.attention import AttentionBackend

    try:
        backend = host.load(ATTENTION_BACKENDS, name)
    except Exception:
        return False  # `explain attention` says why it cannot be loaded
    own = getattr(backend, "capture_steps", None)
    return own is not None and own.__func__ is not AttentionBackend.capture_steps.__func__  # type: ignore[attr-defined]


def _implementation(host: PluginHost, name: str) -> Any:
    from graftlm.ops.implementation import OpImplementation

    try:
        found = host.load(OP_IMPLEMENTATIONS, name)
    except Exception:
        return OpImplementation  # it is not what will run
    return found if hasattr(found, "captured_by") else OpImplementation
