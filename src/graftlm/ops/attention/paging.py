"""What paged attention needs of a step, made once and shared by all layers: where tokens are written and read.

It knows the cache layout [num_blocks, 2, num_kv_heads, block_size, head_size] and computes no attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from graftlm.contracts.attention import AttentionMetadata

#: Gathered keys and values of one group stay in a core's cache between the gather and the products.
GROUP_BYTES = 3 << 20
#: Padding keys that a group may hold before another group, with its handful of calls, costs less.
PADDING_KEYS = 192
#: Queries of a prefill chunk that share a mask: fewer would cost calls, more would compute masked scores.
PIECE_QUERIES = 512

Tokens = slice | torch.Tensor


@dataclasses.dataclass(slots=True)
class DecodeGroup:
    """Requests with one query each, computed together and padded to the longest."""

    tokens: Tokens
    tiles: torch.Tensor
    """[2 * requests * kv_heads * blocks] int64: which cache tiles to gather"""
    shape: tuple[int, int]
    """requests, blocks"""
    keys: int
    mask: torch.Tensor
    """0 for a key of the request, -inf behind it: [requests * kv_heads, 1, keys]; in half precision
    [requests, 1, 1, keys]"""

    def take(self, query: torch.Tensor) -> torch.Tensor:
        return query[self.tokens] if isinstance(self.tokens, slice) else query.index_select(0, self.tokens)

    def put(self, output: torch.Tensor, part: torch.Tensor) -> None:
        if isinstance(self.tokens, slice):
            output[self.tokens] = part
        else:
            output.index_copy_(0, self.tokens, part)


@dataclasses.dataclass(slots=True)
class Piece:
    """Queries `start:stop` of each request of a prefill group see the first `keys` keys; no mask means causal."""

    start: int
    stop: int
    keys: int
    mask: torch.Tensor | None
    """[stop - start, keys]"""


@dataclasses.dataclass(slots=True)
class PrefillGroup:
    """Requests with equally many queries and keys, computed together without padding."""

    tokens: Tokens
    tiles: torch.Tensor
    shape: tuple[int, int]
    keys: int
    queries: int
    pieces: list[Piece]

    def take(self, query: torch.Tensor) -> torch.Tensor:
        found = query[self.tokens] if isinstance(self.tokens, slice) else query.index_select(0, self.tokens)
        return found.view(self.shape[0], self.queries, *found.shape[1:])  # [requests, queries, heads, head_size]

    def put(self, output: torch.Tensor, part: torch.Tensor) -> None:
        if isinstance(self.tokens, slice):
            output[self.tokens].view(part.shape).copy_(part)
        else:
            output.index_copy_(0, self.tokens, part.flatten(0, 1))


class Paging:
    """One step's requests; `layout` answers for layers of one geometry."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        self._layouts: dict[tuple[int, int, int, torch.dtype], Layout] = {}

    def layout(self, kv_cache: torch.Tensor, dtype: torch.dtype) -> Layout:
        """Return what a layer with this cache that computes in `dtype` needs; made once."""
        _, _, kv_heads, block_size, head_size = kv_cache.shape
        key = (kv_heads, block_size, head_size, dtype)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = Layout(self.metadata, kv_cache, dtype)
        return found


class Layout:
    """Write rows, read groups and masks of one step for one cache geometry."""

    def __init__(self, metadata: AttentionMetadata, kv_cache: torch.Tensor, dtype: torch.dtype) -> None:
        _, _, self.kv_heads, self.block_size, self.head_size = kv_cache.shape
        self.metadata = metadata
        self.dtype = dtype
        self.device = metadata.block_table.device
        self.key_rows, self.value_rows = self._write_rows(metadata.slot_mapping)
        self.heads = torch.arange(self.kv_heads, device=self.device)
        self._group_keys = max(1, GROUP_BYTES // (2 * self.kv_heads * self.head_size * kv_cache.element_size()))
        starts: list[int] = [0]
        for length in metadata.query_lens_list:
            starts.append(starts[-1] + length)
        self._starts = starts
        self.decodes = list(self._decode_groups())
        self.prefills = list(self._prefill_groups())
        groups: list[DecodeGroup | PrefillGroup] = [*self.decodes, *self.prefills]
        tiles = max((group.tiles.numel() for group in groups), default=0)
        self._workspace = workspace(tiles * self.block_size * self.head_size, kv_cache)

    def gather(self, group: DecodeGroup | PrefillGroup, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return the group's keys and values [2, requests, kv_heads, keys, size], until the next gather."""
        tile = self.block_size * self.head_size
        found = self._workspace[: group.tiles.numel() * tile].view(-1, tile)
        torch.index_select(kv_cache.view(-1, tile), 0, group.tiles, out=found)
        requests, blocks = group.shape
        kv = found.view(2, requests, self.kv_heads, blocks * self.block_size, self.head_size)
        return kv[:, :, :, : group.keys]

    def _write_rows(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the cache seen as [rows, head_size], for each token and key-value head."""
        block, offset = slots // self.block_size, slots % self.block_size
        tile = (block * (2 * self.kv_heads))[:, None] + torch.arange(self.kv_heads, device=slots.device)
        keys = (tile * self.block_size + offset[:, None]).flatten()  # [tokens * kv_heads]
        return keys, keys + self.kv_heads * self.block_size

    def _tiles(self, requests: list[int], blocks: int) -> torch.Tensor:
        table = self.metadata.block_table[torch.tensor(requests, device=self.device), :blocks].long()
        pairs = torch.stack((table * 2, table * 2 + 1))  # [2, requests, blocks]
        return (pairs[:, :, None, :] * self.kv_heads + self.heads[None, None, :, None]).flatten()

    def _tokens(self, requests: list[int]) -> Tokens:
        """The query tokens of these requests, as a slice where they follow one another."""
        first, last = self._starts[requests[0]], self._starts[requests[-1] + 1]
        lengths = self.metadata.query_lens_list
        if last - first == sum(lengths[r] for r in requests):
            return slice(first, last)
        ranges = [torch.arange(self._starts[r], self._starts[r + 1], device=self.device) for r in requests]
        return torch.cat(ranges)

    def _decode_groups(self) -> Iterator[DecodeGroup]:
        lengths = self.metadata.seq_lens_list
        waiting = [r for r, queries in enumerate(self.metadata.query_lens_list) if queries == 1]
        waiting.sort(key=lambda r: -lengths[r])
        while waiting:
            longest, padding, count = lengths[waiting[0]], 0, 1
            for r in waiting[1:]:
                padding += longest - lengths[r]
                if padding > PADDING_KEYS or (count + 1) * longest > self._group_keys:
                    break
                count += 1
            yield self._decode_group(sorted(waiting[:count]))
            del waiting[:count]

    def _decode_group(self, requests: list[int]) -> DecodeGroup:
        lengths = [self.metadata.seq_lens_list[r] for r in requests]
        keys = max(lengths)
        blocks = -(-keys // self.block_size)
        behind = torch.arange(keys, device=self.device) >= torch.tensor(lengths, device=self.device)[:, None]
        mask = torch.zeros(behind.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(behind, float("-inf"))  # [requests, keys]
        if self.dtype == torch.float32:
            mask = mask.repeat_interleave(self.kv_heads, 0)[:, None]  # [requests * kv_heads, 1, keys]
        else:
            mask = mask[:, None, None]  # [requests, 1, 1, keys]
        return DecodeGroup(
            self._tokens(requests), self._tiles(requests, blocks), (len(requests), blocks), keys, mask
        )

    def _prefill_groups(self) -> Iterator[PrefillGroup]:
        alike: dict[tuple[int, int], list[int]] = {}
        metadata = self.metadata
        for r, lengths in enumerate(zip(metadata.query_lens_list, metadata.seq_lens_list, strict=True)):
            if lengths[0] > 1:
                alike.setdefault(lengths, []).append(r)
        for (queries, keys), requests in alike.items():
            pieces = self._pieces(queries, keys)
            blocks = -(-keys // self.block_size)
            most = max(1, self._group_keys // keys)
            for begin in range(0, len(requests), most):
                part = requests[begin : begin + most]
                yield PrefillGroup(
                    self._tokens(part), self._tiles(part, blocks), (len(part), blocks), keys, queries, pieces
                )

    def _pieces(self, queries: int, keys: int) -> list[Piece]:
        if queries == keys:
            return [Piece(0, queries, keys, None)]
        past = keys - queries
        pieces = []
        for start in range(0, queries, PIECE_QUERIES):
            stop = min(start + PIECE_QUERIES, queries)
            seen = past + stop
            mask = torch.full((stop - start, seen), float("-inf"), dtype=self.dtype, device=self.device)
            pieces.append(Piece(start, stop, seen, mask.triu_(past + start + 1)))
        return pieces


_workspaces: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def workspace(size: int, like: torch.Tensor) -> torch.Tensor:
    """Return this process's scratch memory, grown to `size` numbers; its content is anybody's."""
    key = (like.dtype, like.device)
    held = _workspaces.get(key)
    if held is None or held.numel() < size:
        # An ordinary tensor even inside inference mode, so that it may be written outside of it too.
        with torch.inference_mode(False):
            held = _workspaces[key] = torch.empty(size, dtype=like.dtype, device=like.device)
    return held
