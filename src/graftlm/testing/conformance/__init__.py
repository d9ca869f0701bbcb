"""One conformance suite per contract. Subclass it in a test module, name the `subject`, and run pytest.

`suites_for("my-distribution")` makes a suite for everything that an installed distribution declares. Importing this
package imports neither torch nor pytest; each suite is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.testing.conformance.attention import AttentionBackendConformance
    from graftlm.testing.conformance.communicator import CommunicatorConformance
    from graftlm.testing.conformance.custom_op import CustomOpConformance
    from graftlm.testing.conformance.declared import suites_for
    from graftlm.testing.conformance.endpoint import EndpointConformance
    from graftlm.testing.conformance.general import GeneralPluginConformance
    from graftlm.testing.conformance.model import ModelConformance
    from graftlm.testing.conformance.model_loader import ModelLoaderConformance
    from graftlm.testing.conformance.model_source import ModelSourceConformance
    from graftlm.testing.conformance.op_implementation import OpImplementationConformance
    from graftlm.testing.conformance.platform import PlatformConformance
    from graftlm.testing.conformance.quantization import QuantizationConformance
    from graftlm.testing.conformance.stat_logger import StatLoggerConformance
    from graftlm.testing.conformance.worker import WorkerConformance
    from graftlm.testing.suite import ContractBroken, NotDeclared, Suite, failures

__all__ = [
    "AttentionBackendConformance",
    "CommunicatorConformance",
    "ContractBroken",
    "CustomOpConformance",
    "EndpointConformance",
    "GeneralPluginConformance",
    "ModelConformance",
    "ModelLoaderConformance",
    "ModelSourceConformance",
    "NotDeclared",
    "OpImplementationConformance",
    "PlatformConformance",
    "QuantizationConformance",
    "StatLoggerConformance",
    "Suite",
    "WorkerConformance",
    "failures",
    "suites_for",
]

_MODULE_OF = {
    "AttentionBackendConformance": "conformance.attention", "CommunicatorConformance": "conformance.communicator",
    "ContractBroken": "suite", "CustomOpConformance": "conformance.custom_op",
    "EndpointConformance": "conformance.endpoint", "GeneralPluginConformance": "conformance.general",
    "ModelConformance": "conformance.model", "ModelLoaderConformance": "conformance.model_loader",
    "ModelSourceConformance": "conformance.model_source", "NotDeclared": "suite",
    "OpImplementationConformance": "conformance.op_implementation",
    "PlatformConformance": "conformance.platform", "QuantizationConformance": "conformance.quantization",
    "StatLoggerConformance": "conformance.stat_logger", "Suite": "suite",
    "WorkerConformance": "conformance.worker", "failures": "suite", "suites_for": "conformance.declared",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'graftlm.testing.conformance' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graftlm.testing.{_MODULE_OF[name]}"), name)
