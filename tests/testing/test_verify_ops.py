"""--verify-ops: what a plugin computes wrongly is refused at the start, through the real command line."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import torch
from plugin_packages import Site, run_graftlm
from server import Server

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.layers.linear import ColumnParallelLinear
from graftlm.layers.norm import RMSNorm
from graftlm.ops.build import building
from graftlm.ops.verify import OpRefused, verify_ops
from graftlm.testing import FakeDistribution, plugin_host

WRONG_NORM = """
    from graftlm.layers.norm import RMSNorm

    class WrongNorm(RMSNorm):
        def forward_cpu(self, x, residual=None):
            found = super().forward_native(x, residual)
            return found * 1.01 if residual is None else (found[0] * 1.01, found[1])
"""
RIGHT_OPS = """
    from graftlm.layers.logits import LogitsProcessor
    from graftlm.layers.norm import RMSNorm
    from graftlm.layers.rotary import RotaryEmbedding
    from graftlm.ops import OpImplementation

    class RightRotary(RotaryEmbedding):
        def forward_oot(self, positions, query, key):
            return self.forward_native(positions, query, key)

    class PlainLogits(LogitsProcessor):
        pass

    class RightNorm(OpImplementation):
        def __call__(self, x, residual=None):
            if residual is not None:
                x = residual = residual.add_(x)
            y = self.op.weight * (x / (x.square().mean(-1, keepdim=True) + self.op.eps).sqrt())
            return y if residual is None else (y, residual)

    def register():
        RotaryEmbedding.register_oot(RightRotary)
        LogitsProcessor.register_oot(PlainLogits)
"""
PLATFORM = """
    from graftlm.contracts.platform import PlatformKind
    from graftlm.platforms.cpu import CpuPlatform

    def detect():
        return "acme_right.platform:AcmePlatform"

    class AcmePlatform(CpuPlatform):
        kind = PlatformKind.OOT
        device_name = "acme"
        op_method = "forward_oot"
        op_providers = ("acme",)
"""


def test_a_wrong_replacement_stops_the_start(tmp_path: Path, tiny_llama: Path) -> None:
    """With the flag: op, class, distribution and version, largest error, tolerance, cure. Without it, it serves."""
    site = Site(tmp_path / "site").write(
        "acme-norm",
        version="2.3",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNorm": "acme_norm:WrongNorm"}},
        files={"acme_norm/__init__.py": WRONG_NORM},
    )

    done = run_graftlm("serve", str(tiny_llama), "--port=0", "--verify-ops", env=site.environment)

    assert done.returncode != 0
    text = " ".join((done.stdout + done.stderr).split())
    for words in (
        "the op 'rms_norm', computed by acme_norm.WrongNorm of acme-norm 2.3, is wrong",
        "largest error 0.",
        "tolerance rtol=",
        "--disable-plugin acme-norm:graftlm.layers.norm.RMSNorm",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os._exit(3)", "PluginExits: it called os._exit(3)"),
        ("raise BaseException('x')", "PluginRaises: it raised"),
    ],
)
def test_a_replacement_that_ends_the_process_is_refused_like_any_other(
    tmp_path: Path, tiny_llama: Path, body: str, said: str
) -> None:
    """Op, class and plugin are named, not only the process that would have ended."""
    source = f"""
        import os
        from graftlm.layers.norm import RMSNorm

        class WrongNorm(RMSNorm):
            def forward_cpu(self, x, residual=None):
                {body}
    """
    site = Site(tmp_path / "site").write(
        "acme-norm",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNorm": "acme_norm:WrongNorm"}},
        files={"acme_norm/__init__.py": source},
    )

    done = run_graftlm("run", str(tiny_llama), "-p", "x", "--verify-ops", env=site.environment)

    assert done.returncode == 1
    assert "computed by acme_norm.WrongNorm of acme-norm 1.0, is wrong" in done.stderr
    assert said in done.stderr


def test_right_ones_are_recorded_and_serve(tmp_path: Path, tiny_llama: Path) -> None:
    """A replacement and a provider, each with its largest error; a layer without a reference is said once."""
    site = Site(tmp_path / "site").write(
        "acme-right",
        version="1.1",
        entry_points={
            "general_plugins": {"acme_ops": "acme_right:register"},
            "op_implementations": {"rms_norm.acme": "acme_right:RightNorm"},
            "platform_plugins": {"acme": "acme_right.platform:detect"},
        },
        files={"acme_right/__init__.py": RIGHT_OPS, "acme_right/platform.py": PLATFORM},
    )

    with Server([str(tiny_llama), "--verify-ops"], env=site.environment) as server:
        with urllib.request.urlopen(f"{server.base_url}/plugins?events=true") as response:
            events = json.load(response)["events"]
        output = server.output

    verified = {e["facts"]["op"]: e["facts"] for e in events if e["event"] == "op_verified"}
    assert {name: facts["by"] for name, facts in verified.items() if name in ("rms_norm", "rotary_embedding")} == {
        "rms_norm": "acme-right 1.1", "rotary_embedding": "acme-right 1.1",
    }  # fmt: skip
    assert verified["rms_norm"]["method"] == "rms_norm.acme"
    assert 0 < verified["rms_norm"]["largest_error"] < 1e-4
    assert verified["rotary_embedding"]["largest_error"] == 0
    assert output.count("op not verified op=PlainLogits") == 1


class AlmostNorm(RMSNorm):
    """Right in its forward, wrong in an argument of its constructor."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps * 100)


class PackedNorm(RMSNorm):
    """Keeps its weight under another name."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)
        self.packed = torch.nn.Parameter(self.weight.data)
        self.weight = None  # type: ignore[assignment]


@pytest.mark.parametrize("switches", [["all"], ["none"]])
def test_the_reference_is_what_the_model_asked_for(switches: list[str]) -> None:
    """A replacement's own state, and its own forward_native, do not vouch for themselves."""
    config = EngineConfig()
    config.compilation.custom_ops = switches

    with pytest.raises(OpRefused, match="rows no larger than eps"):
        build_and_verify(config, "test_verify_ops:AlmostNorm")


def test_what_cannot_be_compared_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A replacement without the reference's parameters gives the reference nothing to compute with."""
    host_events = build_and_verify(EngineConfig(), "test_verify_ops:PackedNorm")

    assert "keeps no parameter 'weight'" in host_events["op_not_verified"]["reason"]


def test_ops_of_the_engine_need_no_verification() -> None:
    """What is not replaced and not provided is its own reference."""
    assert build_and_verify(EngineConfig(), None) == {}


def test_a_wrong_provider_is_refused() -> None:
    """What an op_implementations provider computes is compared with the op's own forward_native."""
    points = {
        "op_implementations": {"rms_norm.acme": "wrong_ops:WrongImplementation"},
        "platform_plugins": {"acme": "wrong_platforms:with_providers"},
    }

    with pytest.raises(OpRefused, match=r"computed by wrong_ops.WrongImplementation of acme 1.0, is wrong.*error"):
        build_and_verify(EngineConfig(), None, points=points, platform="acme")


def build_and_verify(
    config: EngineConfig,
    replacement: str | None,
    *,
    points: dict[str, dict[str, str]] | None = None,
    platform: str = "cpu",
) -> dict[str, dict[str, object]]:
    """Build an RMSNorm as a model does and verify it; return the facts of each kind of event."""
    if replacement is not None:
        points = {"custom_ops": {"graftlm.layers.norm.RMSNorm": replacement}}
    device = torch.device("cpu")
    with plugin_host(FakeDistribution("acme", points or {}), role="worker", platform=platform) as host:
        with building(config, dtype=torch.float32, device=device):
            layer = RMSNorm(32)
        for parameter in layer.parameters():
            parameter.data.fill_(1.0)
        verify_ops(torch.nn.Sequential(layer), config, dtype=torch.float32, device=device)
        return {e.event: e.facts for e in host.ledger.events if e.event in ("op_verified", "op_not_verified")}


class Rounds(LinearMethod):
    """Keeps its weight as plain numbers and rounds activations to whole numbers; wrong where a test says so."""

    activation_error = 0.05
    factor = 1.0

    def create_weights(self, layer, *, input_size, output_size, dtype):
        self.weight = torch.zeros(output_size, input_size)

    def load_weight(self, layer, weight, *, row_offset):
        self.weight[row_offset : row_offset + len(weight)] = weight

    def apply(self, layer, x, bias=None):
        scale = x.abs().amax(dim=-1, keepdim=True) / 127
        y = (x / scale).round() * scale @ self.weight.T * self.factor
        return y if bias is None else y + bias

    def embed(self, layer, ids):
        return self.weight[ids]


class Wrong(Rounds):
    factor = 1.2


class ForgetsBias(Rounds):
    def apply(self, layer, x, bias=None):
        return super().apply(layer, x)


class Overwrites(Rounds):
    def apply(self, layer, x, bias=None):
        y = super().apply(layer, x, bias)
        x.zero_()
        return y


class ReadsNothingBack(Rounds):
    def embed(self, layer, ids):
        raise NotImplementedError("no embeddings")


def verify_method(method: LinearMethod) -> dict[str, dict[str, object]]:
    """Verify a layer that multiplies by `method`, with no plugin in sight."""

    class Config(QuantizationConfig):
        name = "rounds"

        @classmethod
        def from_checkpoint(cls, hf_config):
            return cls()

        def get_linear_method(self, layer, prefix):
            return method

    layer = ColumnParallelLinear(40, 24, quant_config=Config(), prefix="model.up")
    layer.load_weight(torch.randn(24, 40, generator=torch.Generator().manual_seed(1)))
    config, device = EngineConfig(), torch.device("cpu")
    with plugin_host(FakeDistribution("acme", {}), role="worker", platform="cpu") as host:
        verify_ops(torch.nn.Sequential(layer), config, dtype=torch.float32, device=device)
        return {e.event: e.facts for e in host.ledger.events if e.event in ("op_verified", "op_not_verified")}


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (Wrong(), r"with 1 token in 0 \[24, 40\], .*largest error [0-9.]+, tolerance rtol="),
        (ForgetsBias(), r"with 5 tokens .*largest error"),
        (Overwrites(), "overwrites its input"),
    ],
)
def test_a_method_that_multiplies_wrongly_is_refused(method: LinearMethod, problem: str) -> None:
    """The product is compared with the rows that the method reads back, beyond its own rounding of activations."""
    with pytest.raises(
        OpRefused, match=rf"'linear', computed by test_verify_ops.{type(method).__name__} .*{problem}"
    ):
        verify_method(method)


def test_a_method_that_multiplies_rightly_is_recorded() -> None:
    """Its own rounding of activations is allowed, and stands in the record."""
    facts = verify_method(Rounds())["op_verified"]

    assert facts["op"] == "linear"
    assert facts["method"] == "Rounds [24, 40]"
    assert 0 < float(str(facts["largest_error"])) < 1
    assert "atol=5.0e-02" in str(facts["tolerance"])


def test_a_method_that_reads_no_rows_back_is_said_to_be_unverified() -> None:
    """There is nothing to compare with, which is no reason to stop."""
    facts = verify_method(ReadsNothingBack())["op_not_verified"]

    assert "no embeddings" in str(facts["reason"])
