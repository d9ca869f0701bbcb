"""Paged attention against one query at a time: any mix of prefill and decode, block tables in any order."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
import torch
from graftlm_kernels import _native, ops
from graftlm_kernels.attention import NativeCpuAttention
from graftlm_kernels.native import MAX_HEAD_SIZE, head_refusal
from packed_cases import FLOATS, assert_close
from plugin_packages import run_graftlm

from graftlm.contracts.platform import AttentionQuestion
from graftlm.layers.rotary import RotaryEmbedding
from graftlm.testing.attention_cases import AttentionCase as Case

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_requests_equals_the_reference(path, seed):
    """Lengths, head counts, head sizes and block sizes drawn at random."""
    rng = random.Random(seed)
    kv_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2, 3, 4, 7, 8])
    requests = [(rng.choice([0, 1, 15, 16, 17, 100, 300]), rng.choice([1, 1, 1, 2, 9, 33, 70])) for _ in range(6)]
    case = Case(
        requests,
        kv_heads * group,
        kv_heads,
        rng.choice([8, 20, 64, 80, 128]),
        rng.choice([8, 16, 32, 64, 128]),
        seed,
    )

    assert_close(case.run(NativeCpuAttention), case.expected(), relative=TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
def test_the_cache_may_have_any_number_format(path, dtype):
    """Queries and cache in one of the half-precision formats; sums are float32."""
    case = Case([(5, 3), (40, 1), (0, 20)], 6, 2, 64, 16)

    assert_close(case.run(NativeCpuAttention, dtype), case.expected(), relative=TOLERANCE[dtype])


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("dtype", [*FLOATS.values()])
def test_blocks_of_any_size_and_format_serve_long_chunks(path, dtype, block_size):
    """Small blocks are brought together; a chunk has more rows than registers hold; heads are no whole vectors."""
    case = Case([(150, 20), (129, 1), (63, 2)], 6, 2, 72, block_size)

    assert_close(case.run(NativeCpuAttention, dtype), case.expected(), relative=TOLERANCE[dtype])


@pytest.mark.parametrize("group", [1, 8, 40])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_contexts_are_cut_and_joined(path, threads, group):
    """One decoding request keeps all threads busy; more heads than fit a task are shared out."""
    _native.set_num_threads(threads)
    past = 8191 if path != "generic" and group == 8 else 2100
    case = Case([(past, 1)], group, 1, 16, 16)

    # The mean of thousands of random values is small beside their rounding.
    assert_close(case.run(NativeCpuAttention), case.expected(), relative=1e-5)


def test_nothing_to_do_is_done(path):
    """A step may have no request."""
    case = Case([], 4, 2, 16, 16)

    assert case.run(NativeCpuAttention).shape == (0, 4, 16)


def test_values_of_other_requests_are_never_seen(path):
    """What lies in a block behind a request's last key is anything, even not a number."""
    case = Case([(0, 5), (20, 1)], 2, 1, 16, 16)
    expected = case.run(NativeCpuAttention)

    class Poisoned(NativeCpuAttention):
        def write_cache(self, key, value, kv_cache, metadata):
            if not kv_cache.isnan().any():
                kv_cache.fill_(float("nan"))
            super().write_cache(key, value, kv_cache, metadata)

    assert torch.equal(case.run(Poisoned), expected)


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
@pytest.mark.parametrize("neox", [True, False])
def test_rotation_inside_equals_rotation_before(path, neox, dtype):
    """The fused form reads columns of one matrix and rotates while it reads."""
    case = Case([(0, 7), (0, 1), (0, 40)], 6, 2, 32, 16)
    tokens, heads, kv_heads, size = 48, 6, 2, 32
    rope = RotaryEmbedding(size, max_position=64, is_neox_style=neox, dtype=dtype)
    implementation = ops.RotaryEmbedding(rope)
    rope.choice = SimpleNamespace(implementation=implementation)
    positions = torch.cat([torch.arange(7), torch.arange(1), torch.arange(40)])
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size).to(dtype)
    query, key, value = qkv.split([heads * size, kv_heads * size, kv_heads * size], dim=-1)
    slots = [slot for r, (_, count) in enumerate(case.requests) for slot in case.slots(r, 0, count)]
    metadata = case.metadata([7, 1, 40], [7, 1, 40], slots)
    NativeCpuAttention.build_metadata(metadata)
    backend = NativeCpuAttention(num_heads=heads, num_kv_heads=kv_heads, head_size=size, scale=size**-0.5)
    shape = NativeCpuAttention.kv_cache_shape(case.num_blocks, 16, kv_heads, size)

    assert backend.fuse_rotation(rope)
    cache = torch.zeros(shape, dtype=dtype)
    fused = backend.rotate_and_attend(query, key, value, cache, metadata, positions)

    q, k = rope.forward_native(positions, query.float(), key.float())
    other = torch.zeros(shape)
    backend.write_cache(k.view(-1, kv_heads, size), value.float().view(-1, kv_heads, size), other, metadata)
    apart = backend.attend(q.view(-1, heads, size), other, metadata).flatten(1)
    assert_close(fused, apart, relative=TOLERANCE[dtype] * 4)


def test_somebody_elses_rotation_is_not_taken_over():
    """A plugin's rotary embedding is called, whatever the backend could do itself."""
    rope = RotaryEmbedding(16, max_position=8)
    backend = NativeCpuAttention(num_heads=2, num_kv_heads=1, head_size=16, scale=1.0)

    assert not backend.fuse_rotation(rope)


def test_questions_it_cannot_answer_are_refused_with_the_reason():
    """The user reads why another backend was chosen."""
    facts = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "dtype": "float32", "kv_cache_dtype": "float32"}

    def answer(**changes):
        return NativeCpuAttention.supports(
            AttentionQuestion(block_size=16, **{"sliding_window": None, **facts, **changes})
        )

    assert answer() is None
    assert "sliding window" in answer(sliding_window=5)
    assert "float64" in answer(kv_cache_dtype="float64")
    assert "1024" in answer(head_size=2048) and "1024" in answer(head_size=0)
    assert "no multiple" in answer(num_kv_heads=3)


def test_refused_head_sizes_are_those_that_the_native_side_refuses():
    """No more and no fewer, in attention as in the rotation, which attention of other backends calls for itself."""
    for size in (MAX_HEAD_SIZE, MAX_HEAD_SIZE + 1, 0):
        fits = size == MAX_HEAD_SIZE
        supported = ops.RotaryEmbedding.supports(device=torch.device("cpu"), dtype=torch.float32, shape=(size,))

        assert (supported is True) is (head_refusal(size) is None) is fits
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=str(MAX_HEAD_SIZE)):
            _native.AttentionLayer(1, 1, size, 1.0)


@pytest.mark.parametrize("words", [{}, {"attention_backend": "TORCH_PAGED"}], ids=["chosen", "named"])
def test_a_model_with_larger_heads_is_computed_without_these_kernels(tmp_path, words):
    """The next backend is taken, and the rotation of its heads is the reference."""
    from checkpoints import make_tiny_llama

    from graftlm import LLM, SamplingParams

    path = make_tiny_llama(tmp_path / "m", head_dim=1040, num_attention_heads=2, num_key_value_heads=1)
    found = []
    for how in (words, {"attention_backend": "TORCH_PAGED", "disable_plugin": ["graftlm-kernels"]}):
        with LLM(str(path), dtype="float32", **how) as llm:
            (output,) = llm.generate([[3, 4, 5]], SamplingParams(temperature=0, max_tokens=4))
        found.append(output.outputs[0].token_ids)

    assert found[0] == found[1]


def test_a_backend_that_is_named_and_refuses_is_one_sentence(tmp_path):
    """With the reason and the flag."""
    from checkpoints import make_tiny_llama

    path = make_tiny_llama(tmp_path / "m", head_dim=1040, num_attention_heads=2, num_key_value_heads=1)
    done = run_graftlm("run", str(path), "-p", "hi", "--attention-backend", "NATIVE_CPU")

    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "its heads have 1 to 1024 numbers, not 1040" in line and "--attention-backend" in line
