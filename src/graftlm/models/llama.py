"""Llama (Touvron et al., 2023; Dubey et al., 2024): pre-norm blocks, rotary positions, grouped heads, SwiGLU.

It does not know how layers are sharded, how attention is computed, or where weights come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from graftlm.contracts.errors import ModelMismatch
from graftlm.layers.activation import SiluAndMul
from graftlm.layers.attention import Attention
from graftlm.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from graftlm.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from graftlm.layers.loading import load_weights
from graftlm.layers.logits import LogitsProcessor
from graftlm.layers.norm import RMSNorm
from graftlm.layers.rotary import get_rope

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig, ModelConfig
    from graftlm.contracts.attention import ForwardContext
    from graftlm.contracts.weights import Weight


class LlamaAttention(nn.Module):
    """Causal attention in which several query heads share each key-value head; q and k are rotated."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        hf, head_size = model.hf_config, model.head_size
        bias = bool(hf.get("attention_bias", False))
        self.qkv_proj = QKVParallelLinear(
            model.hidden_size,
            head_size,
            model.num_heads,
            model.num_kv_heads,
            bias=bias,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            model.num_heads * head_size, model.hidden_size, bias=bias, prefix=f"{prefix}.o_proj"
        )
        base, scaling = rope_parameters(hf)
        rotary_emb = get_rope(
            head_size, max_position=int(hf["max_position_embeddings"]), base=base, rope_scaling=scaling
        )
        self.attn = Attention(
            self.qkv_proj.num_heads, head_size, head_size**-0.5, self.qkv_proj.num_kv_heads,
            rotary_emb=rotary_emb, prefix=f"{prefix}.attn",
        )  # fmt: skip

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        sizes = [self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size]
        q, k, v = self.qkv_proj(hidden).split(sizes, dim=-1)  # [tokens, heads * head_size] each
        mixed = self.attn(q, k, v, context, positions)  # [tokens, num_heads * head_size]
        output: torch.Tensor = self.o_proj(mixed)
        return output


class LlamaMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        hf = model.hf_config
        if hf.get("hidden_act", "silu") != "silu":
            raise ModelMismatch(f"hidden_act={hf['hidden_act']!r}: LlamaForCausalLM computes 'silu' only")
        inner, bias = int(hf["intermediate_size"]), bool(hf.get("mlp_bias", False))
        self.gate_up_proj = MergedColumnParallelLinear(
            model.hidden_size, [inner, inner], bias=bias, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(inner, model.hidden_size, bias=bias, prefix=f"{prefix}.down_proj")
        self.act_fn = SiluAndMul()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_up_proj(hidden)))
        return output


class LlamaDecoderLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)). The sum travels apart, so that each norm adds it in one pass."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        eps = float(model.hf_config["rms_norm_eps"])
        self.input_layernorm = RMSNorm(model.hidden_size, eps)
        self.self_attn = LlamaAttention(model, prefix=f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(model.hidden_size, eps)
        self.mlp = LlamaMLP(model, prefix=f"{prefix}.mlp")

    def forward(
        self, positions: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.self_attn(positions, hidden, context)
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.mlp(hidden), residual


class LlamaModel(nn.Module):
    """Embedding, blocks, final norm."""

    def __init__(self, model: ModelConfig, *, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            model.vocab_size, model.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(model, prefix=f"{prefix}.layers.{i}") for i in range(model.num_layers)
        )
        self.norm = RMSNorm(model.hidden_size, float(model.hf_config["rms_norm_eps"]))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden: torch.Tensor = self.embed_tokens(input_ids)  # [tokens, hidden_size]
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual, context)
        hidden, _ = self.norm(hidden, residual)
        return hidden


class LlamaForCausalLM(nn.Module):
    """The model with its vocabulary projection."""

    #: The layer that holds a checkpoint's tensors stacked, and the part that each fills.
    stacked: ClassVar[list[tuple[str, str, str | int]]] = [
        ("qkv_proj", "q_proj", "q"),
        ("qkv_proj", "k_proj", "k"),
        ("qkv_proj", "v_proj", "v"),
        ("gate_up_proj", "gate_proj", 0),
        ("gate_up_proj", "up_proj", 1),
    ]

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        model = config.model
        self.tied = bool(model.hf_config.get("tie_word_embeddings", False))
        self.model = LlamaModel(model, prefix=f"{prefix}model")
        self.lm_head = ParallelLMHead(model.vocab_size, model.hidden_size, prefix=f"{prefix}lm_head")
        if self.tied:
            self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(model.vocab_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden_states: torch.Tensor = self.model(input_ids, positions, context)
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Weight]]) -> set[str]:
        skip = ["rotary_emb.inv_freq", *(["lm_head."] if self.tied else [])]
        return load_weights(self, weights, stacked=self.stacked, skip=skip)


def rope_parameters(hf: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return rotary base and scaling from either spelling: rope_theta and rope_scaling, or rope_parameters."""
    scaling = dict(hf.get("rope_scaling") or hf.get("rope_parameters") or {})
    inner_base = (hf.get("rope_parameters") or scaling).get("rope_theta")
    scaling.pop("rope_theta", None)
    return float(hf.get("rope_theta") or inner_base or 10_000.0), scaling
