"""The plain-torch attention backend against one query at a time, over generated batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import Case

from graftlm.ops.attention.paging import Paging
from graftlm.ops.attention.torch_paged import TorchPagedAttention

#: fp32 sums of up to 2,048 products in another order.
TOLERANCE = 2e-5

_heads = st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (9, 3), (8, 1), (7, 7)])
_request = st.one_of(
    st.tuples(st.integers(0, 130), st.just(1)),
    st.tuples(st.just(0), st.integers(1, 40)),
    st.tuples(st.integers(1, 70), st.integers(2, 40)),
)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(_request, max_size=9),
    heads=_heads,
    head_size=st.sampled_from([8, 16, 20, 64]),
    block_size=st.sampled_from([1, 8, 16, 32]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_prefill_and_decode_equals_one_query_at_a_time(
    requests: list[tuple[int, int]], heads: tuple[int, int], head_size: int, block_size: int, seed: int
) -> None:
    """Whatever the mix, the block tables and the head groups, each row is that query's attention."""
    case = Case(requests, *heads, head_size=head_size, block_size=block_size, seed=seed)

    torch.testing.assert_close(case.run(TorchPagedAttention), case.expected(), atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([(past, 1) for past in (2047, 0, 15, 16, 17, 300, 2000, 1024)], id="long and short decodes"),
        pytest.param([(17 * r % 400, 1) for r in range(64)], id="64 decodes"),
        pytest.param([(0, 128)] * 3 + [(64, 1)] + [(0, 128)], id="equal prompts, not adjacent"),
        pytest.param([(700, 600)], id="a chunk behind a long past, in two pieces"),
        pytest.param([(5, 1), (0, 33), (5, 1), (40, 9), (6, 1)], id="decodes between prefills"),
    ],
)
def test_shapes_of_real_steps(requests: list[tuple[int, int]]) -> None:
    """The steps that a server makes: grouped heads as in the demo model."""
    case = Case(requests, 9, 3, head_size=64, block_size=16)

    torch.testing.assert_close(case.run(TorchPagedAttention), case.expected(), atol=TOLERANCE, rtol=1e-5)


def test_half_precision_stays_near_the_reference() -> None:
    """bfloat16 keeps eight bits: one part in a hundred after the softmax."""
    case = Case([(40, 1), (3, 1), (0, 20), (10, 5)], 4, 2, head_size=32, block_size=16)

    found = case.run(TorchPagedAttention, torch.bfloat16).float()

    torch.testing.assert_close(found, case.expected(), atol=3e-2, rtol=3e-2)


def test_neighbours_do_not_change_a_row() -> None:
    """A request alone and the same request in a batch agree to rounding."""
    alone = Case([(100, 1)], 4, 2, head_size=16, block_size=8)
    batch = Case([(100, 1), (250, 1), (0, 12)], 4, 2, head_size=16, block_size=8)
    batch.keys[0], batch.values[0], batch.queries[0] = alone.keys[0], alone.values[0], alone.queries[0]

    torch.testing.assert_close(
        batch.run(TorchPagedAttention)[:1], alone.run(TorchPagedAttention), atol=TOLERANCE, rtol=1e-5
    )


def test_layers_of_one_geometry_share_what_a_step_needs() -> None:
    """Gather rows and masks are made once per step, not once per layer."""
    case = Case([(30, 1), (0, 5)], 4, 2, head_size=16, block_size=8)
    metadata = case.metadata([1, 5], [31, 5], case.slots(0, 30, 31) + case.slots(1, 0, 5))
    TorchPagedAttention.build_metadata(metadata)
    caches = [torch.zeros(TorchPagedAttention.kv_cache_shape(case.num_blocks, 8, 2, 16)) for _ in range(2)]

    paging = metadata.backend

    assert isinstance(paging, Paging)
    assert paging.layout(caches[0], torch.float32) is paging.layout(caches[1], torch.float32)
    assert len(paging.layout(caches[0], torch.float32).decodes) == 1


def test_decodes_of_unlike_length_are_not_padded_to_the_longest() -> None:
    """One long context among short ones costs its own keys, not everybody's."""
    case = Case([(2000, 1)] + [(10, 1)] * 31, 4, 2, head_size=16, block_size=16)
    slots = [slot for r in range(32) for slot in case.slots(r, *((2000, 2001) if r == 0 else (10, 11)))]
    metadata = case.metadata([1] * 32, [2001] + [11] * 31, slots)
    cache = torch.zeros(TorchPagedAttention.kv_cache_shape(case.num_blocks, 16, 2, 16))

    groups = Paging(metadata).layout(cache, torch.float32).decodes

    assert sum(group.shape[0] * group.keys for group in groups) < 2001 + 31 * 11 + 200
