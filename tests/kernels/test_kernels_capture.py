"""Kept decode steps: the model's own tokens, and left to the model wherever somebody else wants to compute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graftlm_kernels.capture import Arena, StepCapture

from graftlm.layers.activation import SiluAndMul
from graftlm.plugins.current import find_host, hold_host

sys.path.append(str(Path(__file__).parents[1] / "worker"))


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def make_engine(path: Path, **options: Any) -> Any:
    from worker_runs import Engine

    return Engine(path, dtype="float32", **options)


def requests(prefix: str = "r", *, count: int = 4) -> list[Any]:
    """Requests of different lengths, so that steps of several sizes occur more than twice."""
    from worker_runs import greedy

    prompts = [[(7 * i + j) % 90 + 3 for j in range(5 + 20 * i)] for i in range(count)]
    return [greedy(f"{prefix}{i}", prompt, max_tokens=6 + 4 * i) for i, prompt in enumerate(prompts)]


def capture_of(engine: Any) -> StepCapture:
    capture = engine.worker.model_runner._forward
    assert isinstance(capture, StepCapture)
    return capture


def test_kept_steps_give_the_model_s_tokens(tiny_llama):
    """Two models in one process, each with steps of its own; a second round uses what the first one kept."""
    engine, other = make_engine(tiny_llama), make_engine(tiny_llama, block_size=32)
    plain = make_engine(tiny_llama)
    plain.worker.model_runner._forward = plain.worker.model
    expected = plain.outputs(requests())

    for _ in range(2):
        assert engine.outputs(requests()) == expected
        assert other.outputs(requests()) == expected
    steps = capture_of(engine).steps
    assert set(steps) == {1, 2, 3, 4}
    assert all(step.is_proven and len(step.kept) > 10 for step in steps.values())


def test_a_computation_by_torch_is_left_to_the_model(tiny_llama):
    """One op switched off: nothing is kept, and the reason names what torch computed."""
    engine = make_engine(tiny_llama, custom_ops=["-silu_and_mul"])

    expected = make_engine(tiny_llama, custom_ops=["none"], attention_backend="TORCH_PAGED").outputs(requests())
    assert engine.outputs(requests()) == expected
    assert "silu" in str(capture_of(engine).obstacle)
    assert not capture_of(engine).steps


def test_code_of_others_runs_in_every_step(tiny_llama, monkeypatch):
    """A model with a class from elsewhere is not kept at all."""

    class Other(SiluAndMul):
        pass

    monkeypatch.setattr("graftlm.models.llama.SiluAndMul", Other)
    engine = make_engine(tiny_llama)

    assert engine.worker.model_runner._forward is engine.worker.model


def test_a_computation_that_nobody_sees_is_found_by_its_result(tiny_llama, monkeypatch):
    """NumPy under a kernel's name: the kept step lacks it, differs, and is given up."""
    from graftlm_kernels.ops import SiluAndMul as NativeSilu

    def by_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = np.split(x.numpy(), 2, axis=1)
        y = torch.empty((len(gate), gate.shape[1]))
        y.numpy()[:] = gate / (1 + np.exp(-gate)) * up
        return y

    expected = make_engine(tiny_llama).outputs(requests())
    monkeypatch.setattr(NativeSilu, "__call__", by_numpy)
    engine = make_engine(tiny_llama)

    assert engine.outputs(requests()) == expected
    assert "differ" in str(capture_of(engine).obstacle)


def test_a_hook_that_comes_later_is_heard(tiny_llama):
    """From the next step on, the model itself runs."""
    engine = make_engine(tiny_llama)
    engine.outputs(requests())
    heard: list[int] = []
    engine.worker.model.register_forward_hook(lambda *_: heard.append(1))

    engine.outputs(requests("again"))
    assert len(heard) > 10


def test_another_kv_cache_ends_what_was_kept(tiny_llama):
    """Kept calls hold addresses of the cache, so a new one is the model's business."""
    engine = make_engine(tiny_llama, enable_prefix_caching=False)
    expected = engine.outputs(requests())
    capture = capture_of(engine)
    for layer in engine.worker.attention_layers().values():
        layer.bind_kv_cache(torch.zeros_like(layer.kv_cache))

    assert list(engine.outputs(requests("again")).values()) == list(expected.values())
    assert "KV cache" in str(capture.obstacle)


def test_arena_hands_out_only_what_nobody_uses():
    """Views keep memory taken; freed memory of a fitting size is used again."""
    arena = Arena()
    first = arena.like(torch.empty(3, 100))
    view = first[1:].view(-1)
    address = first.data_ptr()
    del first
    second = arena.like(torch.empty(3, 100))
    assert second.data_ptr() != address
    del view
    third = arena.like(torch.empty(100, 3))
    assert third.data_ptr() == address
    assert arena.owns(third)
    assert not arena.owns(torch.empty(3))
    assert arena.like(torch.empty(0, 4)).shape == (0, 4)


def test_keeping_a_step_imports_no_compiler():
    """The first kept step must not pay for a part of torch that nobody here uses."""
    program = (
        "import sys, torch\n"
        "from graftlm_kernels.capture import Arena, Watch\n"
        "with Watch(Arena()): torch.empty(4).view(2, 2)\n"
        "print([m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
