"""Kept decode steps beside somebody else's code: it runs in every step, and what it changes is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from capture_runs import capture_of, make_engine, never_keep, requests
from graftlm_kernels.recording import ModuleCall
from plugin_packages import Site, run_graftlm

from graftlm.layers.activation import SiluAndMul
from graftlm.layers.norm import RMSNorm
from graftlm.plugins.current import find_host, hold_host


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


class Counting(SiluAndMul):
    """Somebody else's op: it counts, and looks at what it is given by means that torch does not see."""

    calls: ClassVar[list[int]] = []

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        gate, up = np.split(x.numpy(), 2, axis=1)
        return torch.from_numpy(gate / (1 + np.exp(-gate)) * up)


def test_code_of_others_runs_in_every_step(tiny_llama, monkeypatch):
    """Its class is from elsewhere: the step is split there, and whatever it does is done each time."""
    monkeypatch.setattr("graftlm.models.llama.SiluAndMul", Counting)
    engine = make_engine(tiny_llama)
    expected = make_engine(tiny_llama, custom_ops=["-silu_and_mul"]).outputs(requests())

    for _ in range(2):
        assert engine.outputs(requests()) == expected
    steps = capture_of(engine).steps
    assert set(steps) == {1, 2, 3, 4} and all(step.is_proven for step in steps.values())
    assert [split.partition(" ")[0] for split in steps[1].splits] == [
        f"model.model.layers.{i}.mlp.act_fn" for i in range(2)
    ]
    Counting.calls.clear()
    updates = engine.run(requests()[:1])
    assert len(Counting.calls) == 2 * sum(len(update.new_token_ids) for update in updates["r0"])


def test_who_multiplies_is_asked_where_a_method_only_prepares_weights():
    """Quantizing at load is the engine's own; the method that keeps the blocks may be a vendor's."""
    from graftlm_kernels.others import modules_of_others

    from graftlm.layers.quantization.at_load import Q8_0Config, QuantizingMethod
    from graftlm.layers.quantization.unquantized import UnquantizedLinearMethod

    class VendorsMethod(UnquantizedLinearMethod):
        pass

    def model(kept):
        layer = torch.nn.Linear(2, 2)
        layer.linear_method = QuantizingMethod(Q8_0Config(None), prefix="layer", kept=kept)
        return torch.nn.Sequential(layer)

    assert modules_of_others(model(UnquantizedLinearMethod())) == ({}, None)
    assert list(modules_of_others(model(VendorsMethod()))[0]) == ["0"]


def test_a_model_of_others_is_never_kept(tiny_llama):
    """Its own code wants to run, and more than its forward is called."""
    from graftlm.models.llama import LlamaForCausalLM

    class Other(LlamaForCausalLM):
        pass

    engine = make_engine(tiny_llama)
    engine.worker.model.__class__ = Other
    runner = engine.worker.model_runner = engine.worker.build_model_runner()

    assert runner._forward is engine.worker.model and runner._greedy is None
    assert engine.outputs(requests()) == never_keep(make_engine(tiny_llama)).outputs(requests())


def test_a_module_that_changes_its_answer_s_shape_ends_what_was_kept(tiny_llama, monkeypatch):
    """The step is computed by the model after all."""
    monkeypatch.setattr("graftlm.models.llama.SiluAndMul", Counting)
    engine = make_engine(tiny_llama)
    expected = engine.outputs(requests())
    capture = capture_of(engine)
    for step in capture.steps.values():
        for part in step.parts:
            if isinstance(part, ModuleCall):
                part.copies = [place[:, :-1] for place in part.copies]

    assert list(engine.outputs(requests("again")).values()) == list(expected.values())
    assert capture.is_given_up and "act_fn returned" in str(capture.obstacle)


class Unsteady(RMSNorm):
    """Somebody else's op: what it gives back as the residual is not always the memory it was given."""

    gives_new: ClassVar[bool] = False

    def forward_cpu(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return self.forward_native(x)
        y, total = self.forward_native(x, residual)
        return y, total.clone() if self.gives_new else total


def test_a_module_that_ceases_to_overwrite_ends_what_was_kept(tiny_llama, monkeypatch):
    """Later calls would not see what it computed, so the model computes the step."""
    monkeypatch.setattr("graftlm.models.llama.RMSNorm", Unsteady)
    engine = make_engine(tiny_llama)
    expected = engine.outputs(requests())
    capture = capture_of(engine)
    assert len(capture.steps[1].splits) == 5 and not capture.is_given_up
    monkeypatch.setattr(Unsteady, "gives_new", True)

    assert list(engine.outputs(requests("again")).values()) == list(expected.values())
    assert capture.is_given_up and "something new" in str(capture.obstacle)


def test_explain_tells_who_splits_a_step(tmp_path):
    """A kernel's calls are part of a kept step; a replacement's run from Python in each."""
    own = "from graftlm.layers import SiluAndMul\nclass Own(SiluAndMul):\n    def forward_cpu(self, x): return x\n"
    site = Site(tmp_path / "site")
    site.write("own", entry_points={"custom_ops": {"graftlm.layers.SiluAndMul": "own:Own"}}, files={"own.py": own})

    told = {name: explained(name, site.environment) for name in ("SiluAndMul", "RMSNorm")}
    assert "part of the native calls that NATIVE_CPU runs as one" in told["RMSNorm"]
    assert "NATIVE_CPU splits them here: it runs from Python in each, unchanged" in told["SiluAndMul"]
    other = explained("SiluAndMul", site.environment, "--attention-backend", "TORCH_PAGED")
    assert other.endswith("attention backend TORCH_PAGED keeps none"), "whoever computes, without a model as well"


def explained(op: str, environment: dict[str, str], *flags: str) -> str:
    done = run_graftlm("plugins", "explain", "op", op, *flags, env=environment)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if "in kept decode steps" in line)
