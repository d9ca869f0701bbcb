"""Which block holds which prefix. It does not know whether a block is held or free."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

_DIGEST_BYTES = 16


class PrefixMatch(NamedTuple):
    """The blocks of the longest known prefix.

    `being_computed` tells that the block behind them is part of the step being planned: it can be reused in
    the next step, but not in this one.
    """

    block_ids: list[int]
    being_computed: bool


NO_MATCH = PrefixMatch([], being_computed=False)


class PrefixCache:
    """Full blocks by the hash of all tokens up to their end.

    A block's hash is chained over its parent's hash and its own token ids, so that equal hashes mean equal
    prefixes (128 bits of BLAKE2b: collisions cannot be provoked by a chosen prompt).
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self._being_computed: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._block_by_hash)

    def holds(self, block_id: int) -> bool:
        return block_id in self._hash_by_block

    def extend_hashes(self, hashes: list[bytes], token_ids: Sequence[int]) -> None:
        """Append to `hashes` those of the full blocks of `token_ids` that it lacks."""
        size = self.block_size
        parent = hashes[-1] if hashes else b""
        for start in range(len(hashes) * size, len(token_ids) - size + 1, size):
            own = array("q", token_ids[start : start + size]).tobytes()
            parent = hashlib.blake2b(parent + own, digest_size=_DIGEST_BYTES).digest()
            hashes.append(parent)

    def match(self, hashes: Sequence[bytes]) -> PrefixMatch:
        """Find the longest chain of blocks that hold the first of `hashes` and can be read in this step."""
        block_ids: list[int] = []
        for block_hash in hashes:
            if block_hash in self._being_computed:
                return PrefixMatch(block_ids, being_computed=True)
            block_id = self._block_by_hash.get(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return PrefixMatch(block_ids, being_computed=False)

    def insert(self, block_hash: bytes, block_id: int) -> None:
        """Note that the step being planned fills `block_id`; the first block with a hash keeps it."""
        if block_hash not in self._block_by_hash:
            self._block_by_hash[block_hash] = block_id
            self._hash_by_block[block_id] = block_hash
            self._being_computed.add(block_hash)

    def begin_step(self) -> None:
        """A new step is planned: whatever earlier plans fill is readable in it."""
        self._being_computed.clear()

    def forget(self, block_id: int) -> None:
        """The contents of `block_id` are about to be lost."""
        block_hash = self._hash_by_block.pop(block_id, None)
        if block_hash is not None:
            del self._block_by_hash[block_hash]
            self._being_computed.discard(block_hash)
