"""What the engine brings itself, at every extension point, passes the suites for plugins."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from gguf_files import write_llama_gguf

from graftlm.layers.rotary import LinearScalingRotaryEmbedding, Llama3RotaryEmbedding
from graftlm.ops.custom_op import op_registry
from graftlm.ops.names import BUILT_IN_OPS
from graftlm.testing.conformance import (
    AttentionBackendConformance,
    CommunicatorConformance,
    CustomOpConformance,
    ModelConformance,
    ModelLoaderConformance,
    ModelSourceConformance,
    PlatformConformance,
    QuantizationConformance,
    StatLoggerConformance,
    WorkerConformance,
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


class TestCpuWorker(WorkerConformance):
    subject = "graftlm.worker.cpu_worker:CpuWorker"


class TestQ8AtLoad(QuantizationConformance):
    subject = "graftlm.layers.quantization.at_load:Q8_0Config"
    plugin, distribution = "q8_0", "graftlm"
    largest_error = 0.01


class TestQ4AtLoad(QuantizationConformance):
    subject = "graftlm.layers.quantization.at_load:Q4_0Config"
    plugin, distribution = "q4_0", "graftlm"


class TestSafetensorsLoader(ModelLoaderConformance):
    subject = "graftlm.models.checkpoints.safetensors:SafetensorsLoader"
    plugin, distribution = "safetensors", "graftlm"


def write_gguf(source: Path, folder: Path) -> Path:
    """Write the tiny Llama with the reference library, its matrices in Q8_0."""
    config = json.loads((source / "config.json").read_text())
    more = {"rope_parameters": {"rope_theta": config["rope_theta"]}, "head_dim": 16}
    (source / "config.json").write_text(json.dumps({**config, **more}))
    write_llama_gguf(folder / "tiny.gguf", source, format="Q8_0")
    return folder / "tiny.gguf"


class TestGGUFLoader(ModelLoaderConformance):
    subject = "graftlm.models.checkpoints.gguf_loader:GGUFLoader"
    plugin, distribution = "gguf", "graftlm"
    write = write_gguf
    largest_error = 0.01


class TestLocalSource(ModelSourceConformance):
    subject = "graftlm.models.sources.local:LocalSource"
    plugin, distribution = "local", "graftlm"
    model = "{folder}/tiny-llama"


class TestDemoSource(ModelSourceConformance):
    subject = "graftlm.models.sources.demo:DemoSource"
    plugin, distribution = "demo", "graftlm"


class TestHubSource(ModelSourceConformance):
    subject = "graftlm.models.sources.hub:HubSource"
    plugin, distribution = "hf", "graftlm"

    @pytest.fixture(autouse=True)
    def unreachable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing may hang on the hub: it answers nothing in these checks."""
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


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


def test_every_entry_point_of_the_engine_is_tested() -> None:
    """What is published has a suite, but for executors, whose contract is provisional."""
    made = {suite.__mro__[1].__name__.removesuffix("Conformance") for suite in suites_for("graftlm").values()}

    assert made == {
        "AttentionBackend", "Communicator", "Model", "ModelLoader", "ModelSource", "Platform", "Quantization",
        "Worker",
    }  # fmt: skip
