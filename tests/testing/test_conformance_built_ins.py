"""The engine's own platform, ops, attention, models, stat logger and communicator pass the suites for plugins."""

from __future__ import annotations

import importlib.util

from graftlm.layers.rotary import LinearScalingRotaryEmbedding, Llama3RotaryEmbedding
from graftlm.ops.custom_op import op_registry
from graftlm.ops.names import BUILT_IN_OPS
from graftlm.testing.conformance import (
    AttentionBackendConformance,
    CommunicatorConformance,
    CustomOpConformance,
    ModelConformance,
    PlatformConformance,
    StatLoggerConformance,
    suites_for,
)
from graftlm.testing.op_cases import import_ops


class TestCpuPlatform(PlatformConformance):
    subject = "graftlm.platforms.cpu:CpuPlatform"
    detector = "graftlm.platforms.detectors:cpu"


class TestTorchPagedAttention(AttentionBackendConformance):
    subject = "graftlm.ops.attention.torch_paged:TorchPagedAttention"


class TestTorchCommunicator(CommunicatorConformance):
    subject = "graftlm.distributed.communicator:TorchCommunicator"


class TestLoggingStatLogger(StatLoggerConformance):
    subject = "graftlm.frontend.logging_stat_logger:LoggingStatLogger"


class TestLlama(ModelConformance):
    subject = "graftlm.models.llama:LlamaForCausalLM"


class TestOPT(ModelConformance):
    subject = "graftlm.models.opt:OPTForCausalLM"


def _op_suite(cls: type) -> type[CustomOpConformance]:
    return type(f"Test{cls.__name__}", (CustomOpConformance,), {"subject": cls, "__module__": __name__})


import_ops()
for _cls in (*map(op_registry.get, BUILT_IN_OPS), LinearScalingRotaryEmbedding, Llama3RotaryEmbedding):
    globals()[f"Test{_cls.__name__}"] = _op_suite(_cls)

if importlib.util.find_spec("graftlm_kernels") and importlib.util.find_spec("graftlm_kernels._native"):
    globals().update(suites_for("graftlm-kernels"))


def test_every_built_in_op_can_be_verified() -> None:
    """An op without examples would make --verify-ops silent about it."""
    suites = {
        suite.subject.name for suite in CustomOpConformance.__subclasses__() if isinstance(suite.subject, type)
    }

    assert set(BUILT_IN_OPS) <= suites
