"""Gives requests their blocks, new ones or those of the prefix cache; it does not know whose turn it is."""

from __future__ import annotations

from graftlm.scheduler.block_pool import BlockPool
from graftlm.scheduler.prefix_cache import NO_MATCH, PrefixCache, PrefixMatch
from graftlm.scheduler.request import Request


class BlockTables:
    """The block pool and the prefix cache as a request sees them. Nothing changes when an answer is False."""

    def __init__(self, *, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.prefix_cache = PrefixCache(block_size) if enable_prefix_caching else None
        on_reuse = self.prefix_cache.forget if self.prefix_cache is not None else None
        self.pool = BlockPool(num_blocks, on_reuse=on_reuse)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def begin_step(self) -> None:
        if self.prefix_cache is not None:
            self.prefix_cache.begin_step()

    def match(self, request: Request) -> PrefixMatch:
        """Find the cached prefix of a waiting request; its last token is never part of it."""
        if self.prefix_cache is None or request.needs_prompt_logprobs:
            return NO_MATCH
        self.prefix_cache.extend_hashes(request.block_hashes, request.token_ids)
        return self.prefix_cache.match(request.block_hashes[: (request.num_tokens - 1) // self.block_size])

    def admit(self, request: Request, match: PrefixMatch, *, num_spare_blocks: int) -> bool:
        """Give a request the matched blocks and new ones for all its known tokens.

        All at once, so that no prefill stops half-way for want of memory; `num_spare_blocks` stay free.
        """
        num_new = self.blocks_for(request.num_tokens) - len(match.block_ids)
        num_revived = sum(self.pool.is_free(block_id) for block_id in match.block_ids)
        if num_new + num_revived + num_spare_blocks > self.pool.num_free:
            return False
        self.pool.share(match.block_ids)
        request.block_ids = match.block_ids + self.pool.take(num_new)
        request.num_computed_tokens = len(match.block_ids) * self.block_size
        request.num_registered_blocks = len(match.block_ids)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens of a running request."""
        num_new = self.blocks_for(num_tokens) - len(request.block_ids)
        if num_new > self.pool.num_free:
            return False
        if num_new > 0:
            request.block_ids += self.pool.take(num_new)
        return True

    def register_computed(self, request: Request) -> None:
        """Offer to others the blocks that the step being planned fills."""
        num_full = request.num_computed_tokens // self.block_size
        if self.prefix_cache is None or num_full <= request.num_registered_blocks:
            return
        self.prefix_cache.extend_hashes(request.block_hashes, request.token_ids)
        for index in range(request.num_registered_blocks, num_full):
            self.prefix_cache.insert(request.block_hashes[index], request.block_ids[index])
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Take all blocks back; the end of a prefix is the first to be lost."""
        cache = self.prefix_cache
        self.pool.release(reversed(request.block_ids), is_useful=cache.holds if cache else lambda _block_id: False)
        request.block_ids = []
