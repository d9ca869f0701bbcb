"""The backend against the engine's plain-torch reference, which keeps its cache in another layout."""

from __future__ import annotations

import torch
from graftlm_gather_attention import GatherAttention

from graftlm.contracts.attention import AttentionBackend, AttentionMetadata
from graftlm.ops.attention.torch_paged import TorchPagedAttention

BLOCK, HEADS, KV_HEADS, SIZE = 16, 4, 2, 8
#: (queries of this step, keys after it): a prefill, a decode, a chunk with a past, a block just filled.
REQUESTS = [(5, 5), (1, 40), (20, 33), (1, 16)]


def metadata_of(block_table: list[list[int]]) -> AttentionMetadata:
    queries, keys = [q for q, _ in REQUESTS], [k for _, k in REQUESTS]
    starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
    slots = [
        block_table[r][place // BLOCK] * BLOCK + place % BLOCK
        for r, (q, k) in enumerate(REQUESTS)
        for place in range(k - q, k)
    ]
    return AttentionMetadata(
        num_requests=len(REQUESTS), num_tokens=starts[-1], max_query_len=max(queries), max_seq_len=max(keys),
        query_start=torch.tensor(starts, dtype=torch.int32), seq_lens=torch.tensor(keys, dtype=torch.int32),
        block_table=torch.tensor(block_table, dtype=torch.int32), slot_mapping=torch.tensor(slots),
        query_lens_list=queries, seq_lens_list=keys,
    )  # fmt: skip


def run(backend_cls: type[AttentionBackend]) -> torch.Tensor:
    """Fill the pasts, then take one step with all requests."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randperm(16, generator=generator).tolist()
    table = [blocks[3 * r : 3 * r + 3] for r in range(len(REQUESTS))]
    backend = backend_cls(num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE, scale=SIZE**-0.5)
    cache = torch.zeros(backend_cls.kv_cache_shape(16, BLOCK, KV_HEADS, SIZE))
    step = metadata_of(table)
    for request, (queries, keys) in enumerate(REQUESTS):
        past = [table[request][place // BLOCK] * BLOCK + place % BLOCK for place in range(keys - queries)]
        if past:
            before = metadata_of(table)
            before.slot_mapping, before.num_tokens = torch.tensor(past), len(past)
            key, value = torch.randn(2, len(past), KV_HEADS, SIZE, generator=generator)
            backend.write_cache(key, value, cache, before)
    backend_cls.build_metadata(step)
    key, value = torch.randn(2, step.num_tokens, KV_HEADS, SIZE, generator=generator)
    backend.write_cache(key, value, cache, step)
    return backend.attend(torch.randn(step.num_tokens, HEADS, SIZE, generator=generator), cache, step)


def test_it_computes_what_the_reference_computes() -> None:
    """Prefill, decode and a chunk with a past, all in one step."""
    torch.testing.assert_close(run(GatherAttention), run(TorchPagedAttention), atol=1e-5, rtol=1e-5)
