"""Blocks and prefixes on their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graftlm.scheduler.block_pool import BlockPool
from graftlm.scheduler.prefix_cache import PrefixCache


def test_useless_blocks_are_taken_before_useful_ones_and_those_in_order_of_release() -> None:
    """Cached contents live as long as they can."""
    lost: list[int] = []
    pool = BlockPool(5, on_reuse=lost.append)
    held = pool.take(5)
    pool.release([held[3]], is_useful=lambda _block: True)
    pool.release([held[1]], is_useful=lambda _block: True)
    pool.release([held[4]], is_useful=lambda _block: False)
    lost.clear()

    taken = pool.take(3)

    assert taken == lost == [held[4], held[3], held[1]]


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    """Reference counts, also of a block that is revived from the free queue."""
    pool = BlockPool(2)
    [block] = pool.take(1)
    pool.release([block], is_useful=lambda _block: True)
    pool.share([block])
    pool.share([block])

    pool.release([block], is_useful=lambda _block: True)
    free_after_one = pool.num_free
    pool.release([block], is_useful=lambda _block: True)

    assert (free_after_one, pool.num_free) == (1, 2)


def test_a_pool_without_blocks_is_refused() -> None:
    """An empty KV cache is an error with its number."""
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 5)), max_size=60))
def test_a_pool_never_hands_out_a_held_block(actions: list[tuple[str, int]]) -> None:
    """Held and free blocks are disjoint, and together they are all."""
    pool = BlockPool(6)
    held: list[int] = []
    for action, number in actions:
        if action == "take" and pool.num_free:
            [block] = pool.take(1)
            assert block not in held
            held.append(block)
        elif action == "share":
            pool.share([number])
            held.append(number)
        elif action == "release" and held:
            pool.release([held.pop(number % len(held))], is_useful=lambda block: block % 2 == 0)

        assert pool.num_free == 6 - len(set(held))
        assert [pool.num_holders(block) for block in range(6)] == [held.count(block) for block in range(6)]


def test_hashes_are_chained_over_the_parent() -> None:
    """Equal blocks behind different parents differ; a partial block has no hash."""
    cache = PrefixCache(2)
    first: list[bytes] = []
    second: list[bytes] = []
    cache.extend_hashes(first, [1, 2, 5, 6, 9])
    cache.extend_hashes(second, [3, 4, 5, 6])

    assert (len(first), len(second)) == (2, 2)
    assert first[1] != second[1]


def test_hashes_extended_step_by_step_equal_those_made_at_once() -> None:
    """Growing token ids only ever append hashes."""
    cache = PrefixCache(3)
    token_ids = [5, 1, 4, 2, 3, 3, 0, 70000, 2**31, 1]
    at_once: list[bytes] = []
    cache.extend_hashes(at_once, token_ids)
    by_steps: list[bytes] = []
    for end in range(len(token_ids) + 1):
        cache.extend_hashes(by_steps, token_ids[:end])

    assert by_steps == at_once


def test_a_block_of_this_step_is_found_in_the_next_one() -> None:
    """A match stops before what is still being computed, and says so."""
    cache = PrefixCache(1)
    hashes: list[bytes] = []
    cache.extend_hashes(hashes, [1, 2, 3])
    cache.insert(hashes[0], 7)
    cache.begin_step()
    cache.insert(hashes[1], 8)

    now = cache.match(hashes)
    cache.begin_step()
    then = cache.match(hashes)
    cache.forget(7)
    lost = cache.match(hashes)

    assert (now.block_ids, now.being_computed) == ([7], True)
    assert (then.block_ids, then.being_computed) == ([7, 8], False)
    assert (lost.block_ids, lost.being_computed) == ([], False)
