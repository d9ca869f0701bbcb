"""What a replaced op is given in a kept step: the memory that the kernel before it wrote, and no copy of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from capture_runs import capture_of, make_engine, requests
from graftlm_kernels.recording import ModuleCall, NativeCalls
from op_witness import Call, Place, witnesses

from graftlm.plugins.current import find_host, hold_host


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def test_a_replaced_op_is_given_the_kernels_own_memory_in_a_kept_step(tiny_llama):
    """Address, shape and strides are those of the layer before it as it was kept; nothing runs between the two."""
    with witnesses() as calls:
        engine = make_engine(tiny_llama)
        engine.outputs(requests())
        when_kept = {name: list(of) for name, of in calls.items()}
        calls.clear()
        engine.outputs(requests("again"))
        capture = capture_of(engine)

    assert not capture.is_given_up and all(step.is_proven for step in capture.steps.values())
    for step in capture.steps.values():
        kinds = [type(part) for part in step.parts]
        assert kinds == [NativeCalls, ModuleCall] * len(step.splits) + [NativeCalls]
    for name in ("silu_and_mul", "rotary_embedding"):
        made = {(call.made, *call.given) for call in when_kept[name] if call.made is not None}
        kept = [call for call in calls[name] if call.made is None]
        assert len(kept) > 20, "the model's own code did not run"
        assert {tuple(call.callers) for call in kept} == {("torch.nn.modules.module", "graftlm_kernels.recording")}
        for call in kept:
            assert any(is_part(call, whole, given) for whole, *given in made), call


def is_part(call: Call, whole: Place, given: list[Place]) -> bool:
    """Tell whether a call was given what the layer before it made when the step was kept."""
    return call.given == given and call.given[0].address == whole.address and call.given[0].strides == whole.strides
