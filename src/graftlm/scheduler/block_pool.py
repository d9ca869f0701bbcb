"""The blocks of the KV cache: who holds each, and which free one is taken next; it knows nothing of contents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Reference-counted blocks with a free queue.

    A block without holders keeps its contents until it is taken again: contents that may be of use are taken
    least recently released first, and those of no use before them.
    """

    def __init__(self, num_blocks: int, *, on_reuse: Callable[[int], None] | None = None) -> None:
        """`on_reuse(block_id)` is called when a free block is taken and its contents are about to be lost."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}: the KV cache needs at least one block")
        self.num_blocks = num_blocks
        self._on_reuse = on_reuse
        self._holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that have a holder."""
        return 1.0 - len(self._free) / self.num_blocks

    def num_holders(self, block_id: int) -> int:
        return self._holders[block_id]

    def is_free(self, block_id: int) -> bool:
        return block_id in self._free

    def take(self, count: int) -> list[int]:
        """Hand out `count` free blocks; the caller has checked `num_free`."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        taken = []
        for _ in range(count):
            block_id, _none = self._free.popitem(last=False)
            if self._on_reuse is not None:
                self._on_reuse(block_id)
            self._holders[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a holder to each block, with its contents as they are; a free one is free no longer."""
        for block_id in block_ids:
            if self._holders[block_id] == 0:
                del self._free[block_id]
            self._holders[block_id] += 1

    def release(self, block_ids: Iterable[int], *, is_useful: Callable[[int], bool]) -> None:
        """Remove a holder from each block; those left without one become free, in the order given."""
        for block_id in block_ids:
            holders = self._holders[block_id] - 1
            assert holders >= 0, f"block {block_id} was released more often than held"
            self._holders[block_id] = holders
            if holders == 0:
                self._free[block_id] = None
                if not is_useful(block_id):
                    self._free.move_to_end(block_id, last=False)
