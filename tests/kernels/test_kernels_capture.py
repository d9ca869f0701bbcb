"""Kept decode steps: the model's own tokens, and whatever hinders them is found out."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from capture_runs import capture_of, make_engine, never_keep, requests
from graftlm_kernels.arena import Arena
from graftlm_kernels.capture import MAX_TOKENS_WITH_PROMPTS

from graftlm.plugins.current import find_host, hold_host


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def test_kept_steps_give_the_model_s_tokens(tiny_llama):
    """Two models in one process, each with steps of its own; a second round uses what the first one kept."""
    engine, other = make_engine(tiny_llama), make_engine(tiny_llama, block_size=32)
    expected = never_keep(make_engine(tiny_llama)).outputs(requests())

    for _ in range(2):
        assert engine.outputs(requests()) == expected
        assert other.outputs(requests()) == expected
    steps = capture_of(engine).steps
    assert set(steps) == {1, 2, 3, 4}
    assert all(step.is_proven and step.num_native > 10 and not step.splits for step in steps.values())
    assert not capture_of(engine, greedy=False).steps, "nobody asked for anything but the best tokens"


def test_small_steps_with_prompts_are_kept_too(tiny_llama):
    """The same number of tokens, shared among requests in ever other ways: a chunk beside one stream, then two."""
    options: dict[str, Any] = {"max_num_batched_tokens": 12, "enable_prefix_caching": False}
    engine = make_engine(tiny_llama, **options)
    expected = never_keep(make_engine(tiny_llama, **options)).outputs(requests())

    for _ in range(3):
        assert engine.outputs(requests()) == expected
    capture = capture_of(engine, greedy=False)
    assert not capture.steps, "decodes are those of the greedy step"
    assert capture.steps_with_prompts[12].is_proven
    shared = {
        tuple(sorted(plan.num_scheduled_tokens.values()))
        for plan in engine.plans
        if sum(plan.num_scheduled_tokens.values()) == 12
    }
    assert len(shared) > 2, shared


def test_large_steps_with_prompts_are_left_to_the_model(tiny_llama):
    """Their calls cost little beside their work, and hardly two are alike."""
    engine = make_engine(
        tiny_llama, max_num_batched_tokens=MAX_TOKENS_WITH_PROMPTS + 1, enable_prefix_caching=False
    )
    for _ in range(3):
        engine.outputs(requests())
    assert max(capture_of(engine, greedy=False).steps_with_prompts, default=0) <= MAX_TOKENS_WITH_PROMPTS
    assert any(sum(p.num_scheduled_tokens.values()) > MAX_TOKENS_WITH_PROMPTS for p in engine.plans)


def test_a_size_that_comes_twice_is_not_kept(tiny_llama):
    """Three steps of one row: two by the model, and the third is kept but not yet proven."""
    from worker_runs import request_of

    engine = make_engine(tiny_llama)
    engine.outputs([request_of("r0", [1, 2, 3], max_tokens=3, temperature=0)])
    assert not capture_of(engine).steps

    engine.outputs([request_of("r1", [1, 2, 3], max_tokens=2, temperature=0)])
    assert [step.is_proven for step in capture_of(engine).steps.values()] == [False]


def test_opt_is_kept_but_for_its_learned_positions(tiny_opt):
    """Torch adds them, once in a step; blocks, norms and choice are native calls."""
    expected = make_engine(tiny_opt, custom_ops=["none"], attention_backend="TORCH_PAGED").outputs(requests())
    engine = make_engine(tiny_opt)

    for _ in range(2):
        assert engine.outputs(requests()) == expected
    for step in capture_of(engine).steps.values():
        assert step.is_proven and step.num_native > 10
        assert step.splits == ["aten.add.Tensor", "aten.index.Tensor", "aten.add.Tensor"]


def test_rows_that_want_more_than_the_best_token_keep_hidden_states(tiny_llama):
    """Temperature, log-probabilities, penalties and bias: sampling is Python's, the model is kept all the same."""
    from worker_runs import request_of

    wishes: list[dict[str, Any]] = [
        {"temperature": 0.7, "seed": 3},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 0, "logit_bias": {5: 90}},
        {"temperature": 0, "repetition_penalty": 1.5},
        {"temperature": 0, "min_tokens": 3},
    ]
    asked = [request_of(f"r{i}", [5 + i, 6, 7], max_tokens=8, **wish) for i, wish in enumerate(wishes)]
    engine = make_engine(tiny_llama)

    for request in asked:
        expected = never_keep(make_engine(tiny_llama)).outputs([request])
        assert engine.outputs([request]) == expected
    assert capture_of(engine, greedy=False).steps[1].is_proven
    assert not capture_of(engine).steps


def test_a_computation_by_torch_splits_the_step(tiny_llama):
    """One op switched off: the rest is kept around it."""
    engine = make_engine(tiny_llama, custom_ops=["-silu_and_mul"])

    expected = make_engine(tiny_llama, custom_ops=["none"], attention_backend="TORCH_PAGED").outputs(requests())
    for _ in range(2):
        assert engine.outputs(requests()) == expected
    steps = capture_of(engine).steps
    assert set(steps) == {1, 2, 3, 4} and all(step.is_proven for step in steps.values())
    assert all(step.splits == ["aten.silu.default", "aten.mul_.Tensor"] * 2 for step in steps.values())


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
    assert capture_of(engine).is_given_up and not capture_of(engine).steps


def test_a_kept_step_has_no_frame_of_model_layers_or_plugins(tiny_llama):
    """A profile of proven steps: the worker and one native call, however many layers there are."""
    engine = make_engine(tiny_llama)
    engine.outputs(requests())
    execute, frames, steps = engine.worker.execute_step, Counter[str](), []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            frames[frame.f_globals.get("__name__", "")] += 1

    def profiled(plan: Any) -> Any:
        if plan.new:
            return execute(plan)
        steps.append(plan)
        sys.setprofile(note)
        try:
            return execute(plan)
        finally:
            sys.setprofile(None)

    engine.worker.execute_step = profiled
    engine.outputs(requests("again"))
    assert len(steps) > 10 and frames["graftlm_kernels.capture"] >= 2 * len(steps)
    others = (
        "graftlm.models",
        "graftlm.layers",
        "graftlm.ops",
        "graftlm.plugins",
        "graftlm.platforms",
        "importlib",
    )
    assert [name for name in frames if name.startswith((*others, "torch.nn"))] == []
    assert frames.total() < 50 * len(steps), frames


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
    """Views keep memory taken; freed memory of a fitting size is used again, for steps of any number of rows."""
    arena = Arena(64)
    first = arena.like(torch.empty(3, 100), rows=3)
    view = first[1:].view(-1).fill_(3.0)
    address = first.data_ptr()
    del first
    second = arena.like(torch.empty(3, 100), rows=3)
    assert second.data_ptr() != address
    again = arena.seen_again(view)
    assert again.data_ptr() == view.data_ptr() and torch.equal(again, view)
    del view
    third = arena.like(torch.empty(50, 100), rows=50)
    assert third.data_ptr() == address
    assert arena.owns(third)
    assert not arena.owns(torch.empty(3))
    assert arena.like(torch.empty(0, 4)).shape == (0, 4)
    odd = arena.like(torch.empty(7, dtype=torch.bool), rows=7)
    assert arena.seen_again(odd[2:]).data_ptr() == odd.data_ptr() + 2


def test_keeping_a_step_imports_no_compiler():
    """The first kept step must not pay for a part of torch that nobody here uses."""
    program = (
        "import sys, torch\n"
        "from graftlm_kernels.arena import Arena\n"
        "from graftlm_kernels.recording import Recording\n"
        "with Recording(Arena(1), where=(0,) * 7, rows=1, context=None): torch.empty(4).view(2, 2)\n"
        "print([m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
