"""The loader of GGUF files: says their metadata in Hugging Face's words and yields their tensors under its names.

It does not know how the header lies in the file, nor how blocks are decoded.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.models.checkpoints.errors import BrokenCheckpoint, UnsupportedCheckpoint
from graftlm.models.checkpoints.gguf import GGUFFile, read_gguf
from graftlm.models.checkpoints.gguf_rope import llama3_scaling

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight

_ROPE_FACTORS = "rope_freqs.weight"
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFLoader(ModelLoader):
    """Reads llama-family GGUF files."""

    format = "gguf"

    def claims(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return path.suffix == ".gguf" or file.read(4) == b"GGUF"

    def read_facts(self, path: Path) -> CheckpointFacts:
        file = read_gguf(path)
        metadata = file.metadata
        tokenizer = str(path) if metadata.get("tokenizer.ggml.tokens") else None
        return CheckpointFacts(
            path=str(path),
            format=self.format,
            hf_config=_llama_config(file),
            generation_config=_generation_config(metadata),
            tokenizer=tokenizer,
            chat_template=metadata.get("tokenizer.chat_template"),
        )

    def iterate_weights(self, config: EngineConfig) -> Iterator[tuple[str, Weight]]:
        from graftlm.models.checkpoints.gguf_weights import read_weight, unpermute_rows

        file = read_gguf(config.model.path)
        heads = {"attn_q": config.model.num_heads, "attn_k": config.model.num_kv_heads}
        for tensor in file.tensors.values():
            if tensor.name == _ROPE_FACTORS:  # the facts carry them, as rope_scaling
                continue
            weight = read_weight(file, tensor)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                if tensor.shape[0] % (2 * heads[kind]):
                    raise BrokenCheckpoint(
                        file.path,
                        problem=f"tensor {tensor.name!r} has {tensor.shape[0]} rows for {heads[kind]} heads",
                        cure="fetch or convert it again",
                    )
                weight = unpermute_rows(weight, heads[kind])
            yield hf_name(tensor.name, path=file.path), weight
        # What was read is clean and stays in the page cache: it need not count as this process's memory.
        file.map.madvise(mmap.MADV_DONTNEED)


def hf_name(name: str, *, path: Path) -> str:
    """Translate a llama tensor's GGUF name: blk.3.attn_q.weight is model.layers.3.self_attn.q_proj.weight."""
    match name.split("."):
        case [top, ("weight" | "bias") as suffix] if top in _TOP_NAMES:
            return f"{_TOP_NAMES[top]}.{suffix}"
        case ["blk", layer, part, ("weight" | "bias") as suffix] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    raise UnsupportedCheckpoint(
        path, problem=f"tensor {name!r} has no place in a llama model", cure="serve a plain llama-family GGUF file"
    )


def _llama_config(file: GGUFFile) -> dict[str, Any]:
    metadata, tensors = file.metadata, file.tensors
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedCheckpoint(
            file.path, problem=f"general.architecture={architecture!r}", cure="GGUF files of 'llama' are served"
        )
    if metadata.get("llama.expert_count", 0):
        raise UnsupportedCheckpoint(
            file.path,
            problem=f"llama.expert_count={metadata['llama.expert_count']}",
            cure="serve a model without experts",
        )
    num_heads, hidden_size = _size(file, "llama.attention.head_count"), _size(file, "llama.embedding_length")
    head_dim = metadata.get("llama.attention.key_length") or hidden_size // num_heads
    rope_dimensions = metadata.get("llama.rope.dimension_count", head_dim)
    if rope_dimensions != head_dim:
        raise UnsupportedCheckpoint(
            file.path,
            problem=f"llama.rope.dimension_count={rope_dimensions} with heads of {head_dim}",
            cure="serve a model that rotates whole heads",
        )
    base = _number(file, "llama.rope.freq_base", default=10_000.0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": _size(file, "llama.feed_forward_length"),
        "num_hidden_layers": _size(file, "llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": _size(file, "llama.context_length"),
        "rms_norm_eps": _number(file, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": base,
        "rope_scaling": _rope_scaling(file, base=base),
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{'pad' if name == 'padding' else name}_token_id"] = token
    return config


def _size(file: GGUFFile, key: str) -> int:
    value = file.metadata.get(key)
    if not isinstance(value, int) or value < 1:
        raise BrokenCheckpoint(file.path, problem=f"{key}={value!r} is no size", cure="convert it again")
    return value


def _number(file: GGUFFile, key: str, *, default: float | None = None) -> float:
    """Return a float32 value as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
    value = file.metadata.get(key, default)
    if not isinstance(value, float):
        raise BrokenCheckpoint(file.path, problem=f"{key}={value!r} is no number", cure="convert it again")
    return _shortest(value)


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise BrokenCheckpoint(
            file.path, problem="it lacks the tensor 'token_embd.weight'", cure="convert it again"
        )
    return embedding.shape[0]


def _rope_scaling(file: GGUFFile, *, base: float) -> dict[str, Any] | None:
    if tensor := file.tensors.get(_ROPE_FACTORS):
        factors = struct.unpack_from(f"<{tensor.num_bytes // 4}f", file.map, tensor.offset)
        return llama3_scaling(factors, base=base)
    match file.metadata.get("llama.rope.scaling.type", "none"):
        case "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": _number(file, "llama.rope.scaling.factor")}
        case other:
            raise UnsupportedCheckpoint(
                file.path, problem=f"llama.rope.scaling.type={other!r}", cure="linear and llama3 scaling are served"
            )


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """Any of the end tokens that the file names ends a sequence: end of text, of turn, of message."""
    names = ("eos", "eot", "eom")
    ends = [metadata[key] for name in names if (key := f"tokenizer.ggml.{name}_token_id") in metadata]
    ends = list(dict.fromkeys(ends))
    if not ends:
        return {}
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends}


def _shortest(value: float) -> float:
    if not math.isfinite(value):
        return value
    single = struct.pack("<f", value)
    for digits in range(1, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == single:
            return candidate
    return value
