"""OPT (Zhang et al., 2022): learned positions, LayerNorm before or after each part, a tied vocabulary projection.

It does not know how layers are sharded, how attention is computed, or where weights come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers.activation import get_activation
from graftlm.layers.attention import Attention
from graftlm.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from graftlm.layers.linear import ColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from graftlm.layers.loading import load_weights
from graftlm.layers.logits import LogitsProcessor
from graftlm.layers.norm import LayerNorm

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig, ModelConfig
    from graftlm.contracts.attention import ForwardContext
    from graftlm.contracts.weights import Weight

#: The table of positions begins with two rows that no token uses.
POSITION_OFFSET = 2


class OPTLearnedPositionalEmbedding(nn.Module):
    """One learned vector for each position."""

    def __init__(self, num_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_positions + POSITION_OFFSET, hidden_size))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.weight[positions + POSITION_OFFSET]  # [tokens, hidden_size]


class OPTAttention(nn.Module):
    """Causal attention; each head has its own keys and values."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        bias = bool(model.hf_config.get("enable_bias", True))
        self.qkv_proj = QKVParallelLinear(
            model.hidden_size, model.head_size, model.num_heads, model.num_heads,
            bias=bias, prefix=f"{prefix}.qkv_proj",
        )  # fmt: skip
        self.out_proj = RowParallelLinear(
            model.hidden_size, model.hidden_size, bias=bias, prefix=f"{prefix}.out_proj"
        )
        num_heads = self.qkv_proj.num_heads
        self.attn = Attention(num_heads, model.head_size, model.head_size**-0.5, num_heads, prefix=f"{prefix}.attn")

    def forward(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        q, k, v = self.qkv_proj(hidden).chunk(3, dim=-1)  # [tokens, num_heads * head_size] each
        output: torch.Tensor = self.out_proj(self.attn(q, k, v, context))
        return output


class OPTDecoderLayer(nn.Module):
    """x += attention(x); x += mlp(x), each with a LayerNorm before it, or after it in the 350m model.

    With norms before, the sum travels apart, so that each norm adds it in one pass.
    """

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        hf, hidden_size = model.hf_config, model.hidden_size
        bias = bool(hf.get("enable_bias", True))
        if not hf.get("layer_norm_elementwise_affine", True):
            raise ModelMismatch(
                "layer_norm_elementwise_affine=false: OPTForCausalLM computes norms with weights only"
            )
        self.norm_before = bool(hf.get("do_layer_norm_before", True))
        self.self_attn = OPTAttention(model, prefix=f"{prefix}.self_attn")
        self.self_attn_layer_norm = LayerNorm(hidden_size)
        self.fc1 = ColumnParallelLinear(hidden_size, int(hf["ffn_dim"]), bias=bias, prefix=f"{prefix}.fc1")
        self.activation_fn = get_activation(hf["activation_function"])
        self.fc2 = RowParallelLinear(int(hf["ffn_dim"]), hidden_size, bias=bias, prefix=f"{prefix}.fc2")
        self.final_layer_norm = LayerNorm(hidden_size)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.norm_before:
            hidden, _ = self.self_attn_layer_norm(self.self_attn(hidden, context), hidden)
            hidden, _ = self.final_layer_norm(self.mlp(hidden), hidden)
            return hidden, None
        if residual is None:
            hidden, residual = self.self_attn_layer_norm(hidden), hidden
        else:
            hidden, residual = self.self_attn_layer_norm(hidden, residual)
        hidden = self.self_attn(hidden, context)
        hidden, residual = self.final_layer_norm(hidden, residual)
        return self.mlp(hidden), residual

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.fc2(self.activation_fn(self.fc1(hidden)))
        return output


class OPTDecoder(nn.Module):
    """Embeddings, blocks, final norm; the 350m model embeds narrowly and projects in and out."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        hf, hidden_size, embed_size = model.hf_config, model.hidden_size, embedding_size(model)
        self.embed_tokens = VocabParallelEmbedding(model.vocab_size, embed_size, prefix=f"{prefix}.embed_tokens")
        self.embed_positions = OPTLearnedPositionalEmbedding(int(hf["max_position_embeddings"]), hidden_size)
        self.project_in = _projection(embed_size, hidden_size, prefix=f"{prefix}.project_in")
        self.layers = nn.ModuleList(
            OPTDecoderLayer(model, prefix=f"{prefix}.layers.{i}") for i in range(model.num_layers)
        )
        final_norm = hf.get("do_layer_norm_before", True) and not hf.get("_remove_final_layer_norm", False)
        self.final_layer_norm = LayerNorm(hidden_size) if final_norm else None
        self.project_out = _projection(hidden_size, embed_size, prefix=f"{prefix}.project_out")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden = self.project_in(self.embed_tokens(input_ids)) + self.embed_positions(positions)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, context)  # [tokens, hidden_size]
        if self.final_layer_norm is not None:
            hidden, _ = self.final_layer_norm(hidden, residual)
        elif residual is not None:
            hidden = hidden + residual
        output: torch.Tensor = self.project_out(hidden)  # [tokens, word_embed_proj_dim]
        return output


def _projection(input_size: int, output_size: int, *, prefix: str) -> nn.Module:
    return (
        nn.Identity()
        if input_size == output_size
        else ReplicatedLinear(input_size, output_size, bias=False, prefix=prefix)
    )


class OPTModel(nn.Module):
    """The decoder under the name that checkpoints give it."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        self.decoder = OPTDecoder(model, prefix=f"{prefix}.decoder")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden: torch.Tensor = self.decoder(input_ids, positions, context)
        return hidden


class OPTForCausalLM(nn.Module):
    """The model with its vocabulary projection, which is the embedding again."""

    #: The layer that holds a checkpoint's tensors stacked, and the part that each fills.
    stacked: ClassVar[list[tuple[str, str, str | int]]] = [
        ("qkv_proj", "q_proj", "q"),
        ("qkv_proj", "k_proj", "k"),
        ("qkv_proj", "v_proj", "v"),
    ]

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        model = config.model
        self.tied = bool(model.hf_config.get("tie_word_embeddings", True))
        self.model = OPTModel(model, prefix=f"{prefix}model")
        self.lm_head = ParallelLMHead(model.vocab_size, embedding_size(model), prefix=f"{prefix}lm_head")
        if self.tied:
            self.lm_head.tie_weights(self.model.decoder.embed_tokens)
        self.logits_processor = LogitsProcessor(model.vocab_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden_states: torch.Tensor = self.model(input_ids, positions, context)
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Weight]]) -> set[str]:
        # Older checkpoints name the decoder without the model around it.
        named = ((f"model.{name}" if name.startswith("decoder.") else name, weight) for name, weight in weights)
        return load_weights(self, named, stacked=self.stacked, skip=["lm_head."] if self.tied else [])


def embedding_size(model: ModelConfig) -> int:
    return int(model.hf_config.get("word_embed_proj_dim") or model.hidden_size)
