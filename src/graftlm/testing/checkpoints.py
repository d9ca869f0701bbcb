"""Tiny random checkpoints, written as Hugging Face directories without any reference library.

Numbers are drawn wide: with the usual 0.02 the two best tokens are so close that rounding decides. They carry no
tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

HIDDEN, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 64, 128, 264, 2, 4, 2, 16


@dataclasses.dataclass(frozen=True)
class TinyCheckpoint:
    """A config.json and the shapes of its tensors, by their Hugging Face names."""

    hf_config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def write(self, folder: Path, *, leave_out: str = "", add: dict[str, tuple[int, ...]] | None = None) -> Path:
        """Write the directory and return it; `leave_out` names a tensor to forget, `add` brings others or changes.

        A tensor's numbers depend on its name and shape only.
        """
        import torch
        from safetensors.torch import save_file

        shapes = {name: shape for name, shape in {**self.shapes, **(add or {})}.items() if name != leave_out}
        tensors = {}
        for name, shape in shapes.items():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if len(shape) > 1:
                tensors[name] = torch.randn(shape, generator=generator) * 0.3
            elif name.endswith("bias"):
                tensors[name] = torch.randn(shape, generator=generator) * 0.1
            else:
                tensors[name] = torch.rand(shape, generator=generator) + 0.5
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.hf_config))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def tiny_llama(architecture: str = "LlamaForCausalLM", **overrides: Any) -> TinyCheckpoint:
    """A Llama of two layers, grouped heads, and a head of its own; `overrides` go into its config."""
    config = {
        "architectures": [architecture], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float32", **overrides,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }  # fmt: skip
    for i in range(LAYERS):
        prefix = f"model.layers.{i}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE),
            f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return TinyCheckpoint(config, shapes)


def tiny_opt(architecture: str = "OPTForCausalLM", **overrides: Any) -> TinyCheckpoint:
    """An OPT of two layers with a tied head; `overrides` go into its config."""
    config = {
        "architectures": [architecture], "model_type": "opt", "hidden_size": HIDDEN, "ffn_dim": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": VOCAB,
        "word_embed_proj_dim": HIDDEN, "max_position_embeddings": 512, "activation_function": "relu",
        "do_layer_norm_before": True, "enable_bias": True, "tie_word_embeddings": True,
        "torch_dtype": "float32", **overrides,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.decoder.embed_positions.weight": (514, HIDDEN),
        "model.decoder.final_layer_norm.weight": (HIDDEN,),
        "model.decoder.final_layer_norm.bias": (HIDDEN,),
    }
    for i in range(LAYERS):
        prefix = f"model.decoder.layers.{i}"
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= {f"{prefix}.{norm}.weight": (HIDDEN,), f"{prefix}.{norm}.bias": (HIDDEN,)}
        sizes = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN),
                 "self_attn.v_proj": (HIDDEN, HIDDEN), "self_attn.out_proj": (HIDDEN, HIDDEN),
                 "fc1": (INNER, HIDDEN), "fc2": (HIDDEN, INNER)}  # fmt: skip
        for layer, (outputs, inputs) in sizes.items():
            shapes |= {f"{prefix}.{layer}.weight": (outputs, inputs), f"{prefix}.{layer}.bias": (outputs,)}
    return TinyCheckpoint(config, shapes)


def checkpoint_for(model_cls: type[Any]) -> TinyCheckpoint | None:
    """Return the tiny checkpoint of the built-in architecture that a model class is or derives from, or None."""
    known = {"graftlm.models.llama:LlamaForCausalLM": tiny_llama, "graftlm.models.opt:OPTForCausalLM": tiny_opt}
    for cls in model_cls.__mro__:
        make = known.get(f"{cls.__module__}:{cls.__qualname__}")
        if make is not None:
            return make()
    return None
