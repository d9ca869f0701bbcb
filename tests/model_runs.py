"""Loads a model as a worker does and computes its logits, without scheduler, executor or sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.attention import AttentionMetadata, ForwardContext
from graftlm.layers.attention import Attention
from graftlm.models.checkpoints import read_facts
from graftlm.models.loader import load_model
from graftlm.models.registry import ModelRegistry

BLOCK_SIZE = 16


def model_config(path: Path, **hf_overrides: Any) -> EngineConfig:
    """Resolve just enough of a configuration to load the checkpoint."""
    facts = read_facts(path)
    config = EngineConfig()
    config.model.path, config.model.format = facts.path, facts.format
    config.model.hf_config = {**facts.hf_config, **hf_overrides}
    config.model.architecture, _ = ModelRegistry.resolve(config.model.hf_config["architectures"])
    return config


def load(path: Path, *, num_blocks: int = 32, **hf_overrides: Any) -> torch.nn.Module:
    """Load the model with an empty KV cache."""
    model = load_model(model_config(path, **hf_overrides), torch.device("cpu"))
    for layer in model.modules():
        if isinstance(layer, Attention):
            shape = layer.backend_cls.kv_cache_shape(num_blocks, BLOCK_SIZE, layer.num_kv_heads, layer.head_size)
            layer.bind_kv_cache(torch.zeros(shape))
    return model


@torch.inference_mode()
def logits_of(model: torch.nn.Module, prompts: list[list[int]], *, chunks: list[int]) -> list[torch.Tensor]:
    """Compute all prompts side by side in steps of at most `chunks[i]` tokens each (the last step takes the rest).

    Returns the logits [tokens, vocab_size] of every position of each prompt.
    """
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    steps = iter([*chunks, 1 << 30])
    while any(done[r] < len(prompt) for r, prompt in enumerate(prompts)):
        step = next(steps)
        part = [(r, min(step, len(p) - done[r])) for r, p in enumerate(prompts) if done[r] < len(p)]
        input_ids = torch.tensor([t for r, n in part for t in prompts[r][done[r] : done[r] + n]])
        positions = torch.tensor([i for r, n in part for i in range(done[r], done[r] + n)])
        context = ForwardContext(_metadata(model, [(r, done[r], n) for r, n in part]))
        logits = model.compute_logits(model(input_ids, positions, context))
        for (r, n), rows in zip(part, logits.split([n for _, n in part]), strict=True):
            found[r].append(rows)
            done[r] += n
    return [torch.cat(rows) for rows in found]


def _metadata(model: torch.nn.Module, part: list[tuple[int, int, int]]) -> AttentionMetadata:
    """Request r owns blocks 1 + 4 r … 4 + 4 r, in reverse, so that a wrong table shows."""
    tables = {r: [4 + 4 * r - i for i in range(4)] for r, _, _ in part}
    query_lens = [n for _, _, n in part]
    seq_lens = [start + n for _, start, n in part]
    slots = [
        tables[r][i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
        for r, start, n in part
        for i in range(start, start + n)
    ]
    metadata = AttentionMetadata(
        num_requests=len(part),
        num_tokens=sum(query_lens),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        query_start=torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=torch.tensor([tables[r] for r, _, _ in part], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        query_lens_list=query_lens,
        seq_lens_list=seq_lens,
    )
    backend = next(layer.backend_cls for layer in model.modules() if isinstance(layer, Attention))
    backend.build_metadata(metadata)
    return metadata
