"""The parts of a worker: batch rows, seen tokens, block size, cache memory."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_runs import Engine, greedy

from graftlm.contracts.attention import AttentionBackend
from graftlm.contracts.errors import StartupError
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import ContinuedRequest, NewRequest, StepPlan
from graftlm.contracts.worker import Worker as WorkerContract
from graftlm.worker import Worker
from graftlm.worker.cpu_worker import CpuWorker
from graftlm.worker.decode_inputs import DecodeInputs
from graftlm.worker.input_batch import InputBatch
from graftlm.worker.seen_tokens import SeenTokens
from graftlm.worker.step_inputs import StepInputs, build_step_inputs


def new(request_id: str, token_ids: list[int], block_ids: list[int], *, num_computed_tokens: int = 0) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(),
        block_ids=block_ids,
        num_computed_tokens=num_computed_tokens,
    )


def make_batch(max_num_seqs: int = 3) -> InputBatch:
    return InputBatch(max_num_seqs=max_num_seqs, max_model_len=32, block_size=4, vocab_size=100, default_seed=0)


def test_a_mixed_step_is_laid_out_request_by_request() -> None:
    """A prefill chunk, a decode and a prefix hit in one flat batch: ids, positions, slots, tables, lengths."""
    batch = make_batch()
    first = StepPlan(step_id=0, num_scheduled_tokens={"a": 5}, new=[new("a", [1, 2, 3, 4, 5], [7, 2])])
    batch.apply(first)
    plan = StepPlan(
        step_id=1,
        num_scheduled_tokens={"b": 2, "a": 1, "c": 3},
        new=[
            new("b", [10, 11, 12], [5]),
            new("c", [20, 21, 22, 23, 24, 25, 26, 27, 28], [7, 9, 4], num_computed_tokens=6),
        ],
        continued=[ContinuedRequest(request_id="a", num_computed_tokens=5, new_token_ids=[6])],
    )
    batch.apply(plan)

    step = build_step_inputs(batch, plan, torch.device("cpu"))

    metadata = step.context.attention
    assert step.request_ids == ["b", "a", "c"]
    assert step.input_ids.tolist() == [10, 11, 6, 26, 27, 28]
    assert step.positions.tolist() == [0, 1, 5, 6, 7, 8]
    assert metadata.slot_mapping.tolist() == [20, 21, 9, 38, 39, 16]
    assert metadata.query_start.tolist() == [0, 2, 3, 6]
    assert metadata.seq_lens.tolist() == metadata.seq_lens_list == [2, 6, 9]
    assert metadata.query_lens_list == [2, 1, 3]
    assert metadata.block_table.tolist() == [[5, 0, 0], [7, 2, 0], [7, 9, 4]]
    assert (metadata.max_query_len, metadata.max_seq_len, metadata.num_tokens) == (3, 9, 6)
    assert step.samples.tolist() == [False, True, True]


@given(
    st.lists(st.lists(st.integers(1, 22), min_size=1, max_size=6), min_size=1, max_size=5), st.sampled_from([4, 3])
)
@settings(max_examples=40, deadline=None)
def test_a_step_of_single_tokens_is_laid_out_like_any_other(steps: list[list[int]], block_size: int) -> None:
    """Whatever the batch was before: its memory is used again by steps of all sizes."""
    batch = InputBatch(max_num_seqs=6, max_model_len=33, block_size=block_size, vocab_size=100, default_seed=0)
    inputs, last = DecodeInputs(batch, torch.device("cpu")), []
    for step_id, computed in enumerate(steps):
        requests = [
            new(f"{step_id}-{i}", list(range(i, i + number + i % 2 + 1)), list(range(7 * i, 7 * i + 8)),
                num_computed_tokens=number)
            for i, number in enumerate(computed)
        ]  # fmt: skip
        batch.apply(StepPlan(step_id=step_id, num_scheduled_tokens={}, new=requests, finished=last))
        last = [request.request_id for request in reversed(requests)]
        plan = StepPlan(step_id=step_id, num_scheduled_tokens=dict.fromkeys(last, 1))

        found, expected = inputs.build(plan), build_step_inputs(batch, plan, torch.device("cpu"))
        assert plain(found) == plain(expected)


def plain(step: StepInputs) -> list[object]:
    """Everything in a step, tensors with their number format."""
    own = [getattr(step, field.name) for field in dataclasses.fields(step) if field.name != "context"]
    own += [getattr(step.context.attention, f.name) for f in dataclasses.fields(step.context.attention)]
    return [(str(one.dtype), one.tolist()) if hasattr(one, "dtype") else one for one in [*own, step.num_tokens]]


def test_a_row_in_use_again_shows_nothing_of_its_last_request() -> None:
    """Blocks, lengths and the sampling state of a finished request are gone from its row."""
    batch = make_batch(max_num_seqs=1)
    batch.apply(StepPlan(step_id=0, num_scheduled_tokens={"a": 9}, new=[new("a", list(range(9)), [3, 4, 5])]))
    plan = StepPlan(step_id=1, num_scheduled_tokens={"b": 2}, new=[new("b", [8, 9], [6])], finished=["a"])
    batch.apply(plan)

    build_step_inputs(batch, plan, torch.device("cpu"))

    assert batch.block_table[0].tolist() == [6, 0, 0, 0, 0, 0, 0, 0]
    assert "a" not in batch and "b" in batch


def test_more_requests_than_rows_is_an_error_that_says_so() -> None:
    """A plan that does not fit the batch is our own mistake and must not go unnoticed."""
    batch = make_batch(max_num_seqs=1)
    batch.apply(StepPlan(step_id=0, new=[new("a", [1], [0])]))

    with pytest.raises(RuntimeError, match="1 of 1 rows"):
        batch.apply(StepPlan(step_id=1, new=[new("b", [1], [1])]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40)), st.lists(st.lists(st.integers(0, 1000), max_size=80), max_size=8))
def test_seen_tokens_count_like_a_counter(prompt: list[int], outputs: list[list[int]]) -> None:
    """Kept up piece by piece, distinct ids and output counts are exact, beyond any first size."""
    seen = SeenTokens(prompt, [])
    for output in outputs:
        seen.append(output)

    counts = collections.Counter(token for output in outputs for token in output)
    expected = {**dict.fromkeys(prompt, 0), **counts}
    assert dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True)) == expected
    assert len(seen.ids) == len(expected)


def test_the_base_worker_meets_the_contract(tiny_llama: Path) -> None:
    """What plugin authors subclass is a Worker, and a subclass that overrides nothing serves."""

    class PlainWorker(Worker):
        pass

    cpu = Engine(tiny_llama, max_model_len=64)
    plain = Engine(tiny_llama, max_model_len=64, worker_cls=PlainWorker)
    request = greedy("a", [1, 2, 3], max_tokens=8)

    assert isinstance(plain.worker, WorkerContract)
    assert plain.outputs([request]) == cpu.outputs([request])


def test_the_kv_cache_spec_says_what_a_block_costs(tiny_llama: Path) -> None:
    """Bytes of all layers, keys and values; and the memory that the user named is what may be taken."""
    engine = Engine(tiny_llama, max_model_len=64, num_blocks=10, kv_cache_memory_bytes=12345)

    spec = engine.worker.get_kv_cache_spec()

    held = sum(layer.kv_cache.nbytes for layer in engine.worker.attention_layers().values())  # type: ignore[union-attr]
    assert spec.block_bytes == 2 * 2 * engine.block_size * 2 * 16 * 4  # layers, k and v, tokens, heads, size, bytes
    assert held == 10 * spec.block_bytes
    assert (spec.num_layers, spec.num_kv_heads, spec.head_size, spec.dtype) == (2, 2, 16, "float32")
    assert engine.worker.determine_available_memory() == 12345


def test_a_block_size_that_no_backend_has_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's choice wins over the platform's, but not over what a backend can do."""
    engine = Engine(tiny_llama, max_model_len=64, block_size=32)
    [backend] = engine.worker.attention_backends()
    assert engine.block_size == 32
    assert issubclass(backend, AttentionBackend)
    monkeypatch.setattr(backend, "supported_block_sizes", classmethod(lambda cls: (8, 16)))

    with pytest.raises(StartupError, match=r"--block-size=32 does not suit .* it has: 8, 16"):
        engine.worker.update_block_size()


def test_cache_memory_is_taken_where_it_is_written(tiny_llama: Path) -> None:
    """A large cache costs no memory before tokens are in it, reads as zeros and starts on a cache line."""
    worker = CpuWorker(
        Engine(tiny_llama, max_model_len=64).config, rank=0, local_rank=0, distributed_init_method=""
    )
    process = psutil.Process()
    before = process.memory_info().rss

    cache = worker.allocate_zeros((1 << 10, 1 << 18), torch.bfloat16)
    reserved = process.memory_info().rss - before

    assert cache.nbytes == 1 << 29
    assert reserved < 1 << 24
    assert cache.data_ptr() % 64 == 0
    assert int(cache[5].count_nonzero()) == 0

    before = process.memory_info().rss
    cache[-1, 0] = 1
    assert process.memory_info().rss - before < 1 << 20, "one number took a huge page"
