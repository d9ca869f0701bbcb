"""Builds a model class over a checkpoint directory and computes its logits step by step, without an engine.

It knows no architecture; it needs a plugin host of a worker, for the attention layers' question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.attention import AttentionMetadata, ForwardContext
from graftlm.layers.attention import Attention
from graftlm.models.checkpoints import read_facts
from graftlm.models.loader import build_model, fill_model

_BLOCK_SIZE, _BLOCKS_EACH, _NUM_BLOCKS = 16, 4, 40


def config_of(folder: Path) -> EngineConfig:
    """Resolve just enough of a configuration to load the checkpoint."""
    facts = read_facts(folder)
    config = EngineConfig()
    config.model.path, config.model.format = facts.path, facts.format
    config.model.hf_config = dict(facts.hf_config)
    config.model.architecture = (facts.hf_config.get("architectures") or [""])[0]
    config.model.dtype = "float32"
    config.model.max_model_len = int(facts.hf_config.get("max_position_embeddings", 512))
    return config


def load_class(model_cls: type[Any], folder: Path) -> torch.nn.Module:
    """Build the class as a worker does, fill it from the checkpoint, and give it a KV cache."""
    config = config_of(folder)
    model = build_model(config, torch.device("cpu"), model_cls=model_cls)
    fill_model(model, config)
    for layer in attention_layers(model):
        shape = layer.backend_cls.kv_cache_shape(_NUM_BLOCKS, _BLOCK_SIZE, layer.num_kv_heads, layer.head_size)
        layer.bind_kv_cache(torch.zeros(shape))
    return model


def attention_layers(model: torch.nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


@dataclasses.dataclass(slots=True)
class StepInput:
    """What a model gets for one step."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    context: ForwardContext


def step_input(
    model: torch.nn.Module, prompts: Sequence[list[int]], spans: list[tuple[int, int, int]]
) -> StepInput:
    """Make the tensors of a step that computes tokens `start:stop` of prompt r for each (r, start, stop).

    Prompt r owns four blocks of its own, in reverse order, so that a wrong table shows.
    """
    tables = {r: [_BLOCKS_EACH * (r + 1) - i for i in range(_BLOCKS_EACH)] for r, _, _ in spans}
    query_lens = [stop - start for _, start, stop in spans]
    ends = [stop for _, _, stop in spans]
    places = [(r, i) for r, start, stop in spans for i in range(start, stop)]
    starts = [0]
    for count in query_lens:
        starts.append(starts[-1] + count)
    metadata = AttentionMetadata(
        num_requests=len(spans),
        num_tokens=len(places),
        max_query_len=max(query_lens),
        max_seq_len=max(ends),
        query_start=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=torch.tensor([tables[r] for r, _, _ in spans], dtype=torch.int32),
        slot_mapping=torch.tensor([tables[r][i // _BLOCK_SIZE] * _BLOCK_SIZE + i % _BLOCK_SIZE for r, i in places]),
        query_lens_list=query_lens,
        seq_lens_list=ends,
    )
    for backend_cls in dict.fromkeys(layer.backend_cls for layer in attention_layers(model)):
        backend_cls.build_metadata(metadata)
    return StepInput(
        torch.tensor([prompts[r][i] for r, i in places]),
        torch.tensor([i for _, i in places]),
        ForwardContext(metadata),
    )


@torch.inference_mode()
def logits_of(model: Any, prompts: Sequence[list[int]], *, chunks: Sequence[int] = ()) -> list[torch.Tensor]:
    """Compute all prompts side by side, `chunks[i]` tokens of each in step i, the rest in the last one.

    Returns the logits [tokens, vocab_size] of every position of each prompt.
    """
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    steps = iter([*chunks, 1 << 30])
    while any(done[r] < len(prompt) for r, prompt in enumerate(prompts)):
        size = next(steps)
        spans = [(r, done[r], min(done[r] + size, len(p))) for r, p in enumerate(prompts) if done[r] < len(p)]
        step = step_input(model, prompts, spans)
        logits = model.compute_logits(model(step.input_ids, step.positions, step.context))
        if logits is None:  # another rank than the first
            logits = torch.empty(len(step.input_ids), 0)
        for (r, _, stop), rows in zip(spans, logits.split([b - a for _, a, b in spans]), strict=True):
            found[r].append(rows)
            done[r] = stop
    return [torch.cat(rows) for rows in found]
