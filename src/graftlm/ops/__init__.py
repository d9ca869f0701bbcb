"""Replaceable functions on tensors: their plain-torch references, and how an implementation is chosen.

Importing this package imports no torch; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.ops.custom_op import CustomOp
    from graftlm.ops.implementation import OpImplementation
    from graftlm.ops.kernel_functions import override_kernel
    from graftlm.ops.pluggable import PluggableLayer

__all__ = ["CustomOp", "OpImplementation", "PluggableLayer", "override_kernel"]


def __getattr__(name: str) -> Any:
    match name:
        case "CustomOp":
            from graftlm.ops.custom_op import CustomOp

            return CustomOp
        case "OpImplementation":
            from graftlm.ops.implementation import OpImplementation

            return OpImplementation
        case "override_kernel":
            from graftlm.ops.kernel_functions import override_kernel

            return override_kernel
        case "PluggableLayer":
            from graftlm.ops.pluggable import PluggableLayer

            return PluggableLayer
    raise AttributeError(f"module 'graftlm.ops' has no attribute {name!r}")
