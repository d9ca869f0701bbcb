"""What a replaced op is given in a step that the model computes: its neighbour's tensors, with nothing between."""

from __future__ import annotations

from pathlib import Path

from op_witness import witnesses
from worker_runs import Engine, greedy

#: Where torch calls a module.
TORCH = "torch.nn.modules.module"


def test_a_replaced_op_is_given_the_very_tensors_of_its_neighbour(tiny_llama: Path) -> None:
    """The same object, or views with its strides; between model and replacement there is only torch's own call."""
    with witnesses() as calls:
        engine = Engine(tiny_llama, attention_backend="TORCH_PAGED")
        engine.outputs([greedy("a", [5, 6, 7], max_tokens=4), greedy("b", [8, 9], max_tokens=4)])

    silu, rotary = calls["silu_and_mul"], calls["rotary_embedding"]
    assert len(silu) == len(rotary) == 2 * len(engine.plans), "two layers"
    for call in silu:
        assert call.is_same_object and call.given == [call.made]
        assert call.callers == [TORCH, "graftlm.models.llama"]
    for call in rotary:
        query, key = call.given
        assert call.made is not None
        assert (query.address, query.strides) == (call.made.address, call.made.strides)
        assert (key.address, key.strides) == (call.made.address + 4 * query.shape[1], call.made.strides)
        assert call.callers == [TORCH, "graftlm.layers.attention"]
