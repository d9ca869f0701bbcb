"""As many streams as the server takes, with long contexts and less memory than they want, again and again."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from worker_runs import Engine, assert_equal_while_sure, greedy, reference

from graftlm.contracts.request import EngineRequest

NUM_STREAMS = 64
CONTEXT = 400
MAX_TOKENS = 40
#: For some 25 of the streams at a time, and no room for all of these to grow.
NUM_BLOCKS = 660


def prompt(index: int, *, wave: int) -> list[int]:
    return [(index * 31 + wave * 17 + i * i + (index + 3) * i) % 250 for i in range(CONTEXT)]


def requests(wave: int) -> list[EngineRequest]:
    return [greedy(f"r{i}", prompt(i, wave=wave), max_tokens=MAX_TOKENS) for i in range(NUM_STREAMS)]


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    return Engine(tiny_llama, max_model_len=512, max_num_seqs=NUM_STREAMS, num_blocks=NUM_BLOCKS)


def test_64_long_contexts_are_served_although_memory_is_short(engine: Engine, tiny_llama: Path) -> None:
    """Some are preempted; every stream gets its tokens, three are compared, and no block is kept."""
    outputs = engine.outputs(requests(wave=0))

    assert engine.num_preemptions > 0
    assert [len(outputs[f"r{i}"]) for i in range(NUM_STREAMS)] == [MAX_TOKENS] * NUM_STREAMS
    looked_at = {f"r{place}": outputs[f"r{i}"] for place, i in enumerate((0, 24, 63))}
    expected = reference(tiny_llama, [prompt(i, wave=0) for i in (0, 24, 63)], max_tokens=MAX_TOKENS)
    assert_equal_while_sure(looked_at, expected)
    assert engine.scheduler.num_free_blocks == NUM_BLOCKS


def test_a_wave_of_64_streams_leaves_nothing_behind(engine: Engine) -> None:
    """After a wave of new contexts there are no more objects than before it, in scheduler and worker."""
    engine.run(requests(wave=1))
    engine.plans.clear()
    gc.collect()
    before = len(gc.get_objects())

    engine.run(requests(wave=2))
    engine.plans.clear()
    gc.collect()

    assert len(gc.get_objects()) - before < NUM_STREAMS
    assert engine.scheduler.num_free_blocks == NUM_BLOCKS
