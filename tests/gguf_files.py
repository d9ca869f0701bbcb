"""Writes GGUF files for tests with the reference library, in every block format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import BOS_ID, CHAT_TEMPLATE, EOS_ID, MERGES, PAD_ID, SPECIAL_TOKENS, vocabulary

#: Formats that the reference can write; K-quants are drawn as random blocks instead.
QUANTIZABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_QUANTS = ("Q4_K", "Q6_K")
ALL_FORMATS = QUANTIZABLE + K_QUANTS

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def quantize(values: np.ndarray, format: str) -> np.ndarray:
    """Return the bytes [rows, bytes_per_row] of a float32 matrix in a format (K-quants: of another matrix)."""
    from gguf import GGMLQuantizationType, quants

    if format in K_QUANTS:
        return random_k_blocks(format, values.shape, seed=values.shape[0])
    return quants.quantize(values, GGMLQuantizationType[format]).view(np.uint8)


def dequantize(data: np.ndarray, format: str) -> np.ndarray:
    """Return the float32 matrix that the reference reads out of bytes [rows, bytes_per_row]."""
    from gguf import GGMLQuantizationType, quants

    return quants.dequantize(data, GGMLQuantizationType[format])


def random_k_blocks(format: str, shape: tuple[int, ...], *, seed: int) -> np.ndarray:
    """Draw blocks whose weights stay near ±0.5: any bytes are a valid block, only the scales must be tame."""
    rows, columns = shape
    generator = np.random.default_rng(seed)
    block_bytes = {"Q4_K": 144, "Q6_K": 210}[format]
    blocks = generator.integers(0, 256, (rows, columns // 256, block_bytes), dtype=np.uint8)
    scale = generator.uniform(0.5, 1.5, (rows, columns // 256)).astype(np.float32)
    if format == "Q4_K":
        # weight = d * scale * q - dmin * minimum, scales and minima to 63, q to 15: centred when dmin = 7.5 d
        d = scale * 1e-3
        blocks[..., 0:2] = _half_bytes(d)
        blocks[..., 2:4] = _half_bytes(7.5 * d)
    else:
        blocks[..., 208:210] = _half_bytes(scale * 2e-4)
    return blocks.reshape(rows, -1)


def _half_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)[..., None].view(np.uint8)


def write_llama_gguf(
    path: Path, checkpoint: Path, *, format: str = "F32", **metadata: Any
) -> dict[str, np.ndarray]:
    """Write a llama checkpoint directory as GGUF, its matrices in `format`; return what its tensors now mean.

    The returned arrays bear Hugging Face's names and row order, so that a reference model can be filled with them.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from safetensors.numpy import load_file

    hf = json.loads((checkpoint / "config.json").read_text())
    writer = GGUFWriter(path, "llama")
    _write_metadata(writer, hf)
    for key, value in metadata.items():
        writer.add_key_value(key, *value)
    meaning = {}
    for name, values in load_file(checkpoint / "model.safetensors").items():
        kind = name.split(".")[-2]
        heads = {"q_proj": hf["num_attention_heads"], "k_proj": hf["num_key_value_heads"]}.get(kind)
        values = _permute(values, heads) if heads else values
        if values.ndim == 2:
            data = quantize(values, format)
            writer.add_tensor(gguf_name(name), data, raw_dtype=GGMLQuantizationType[format])
            values = dequantize(data, format)
        else:
            writer.add_tensor(gguf_name(name), values)
        meaning[name] = _unpermute(values, heads) if heads else values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meaning


def gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{suffix}"


def _permute(values: np.ndarray, heads: int) -> np.ndarray:
    """As the GGUF converter orders q and k rows: from halves to interleaved pairs."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, values.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def _write_metadata(writer: Any, hf: dict[str, Any]) -> None:
    writer.add_context_length(hf["max_position_embeddings"])
    writer.add_embedding_length(hf["hidden_size"])
    writer.add_block_count(hf["num_hidden_layers"])
    writer.add_feed_forward_length(hf["intermediate_size"])
    writer.add_head_count(hf["num_attention_heads"])
    writer.add_head_count_kv(hf["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    writer.add_rope_freq_base(hf["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(hf["head_dim"])
    writer.add_vocab_size(hf["vocab_size"])
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_pad_token_id(PAD_ID)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def reference_from_gguf(path: Path) -> Any:
    """Return transformers' LlamaForCausalLM in fp32, filled with what the GGUF library reads; none of our code."""
    import torch
    from gguf import GGUFReader, quants
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(path)
    value = {key.removeprefix("llama."): field.contents() for key, field in reader.fields.items()}
    heads = {"attn_q": value["attention.head_count"], "attn_k": value["attention.head_count_kv"]}
    names = {tensor.name for tensor in reader.tensors}
    config = LlamaConfig(
        hidden_size=value["embedding_length"], intermediate_size=value["feed_forward_length"],
        num_hidden_layers=value["block_count"], num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"], max_position_embeddings=value["context_length"],
        rms_norm_eps=value["attention.layer_norm_rms_epsilon"], vocab_size=value["vocab_size"],
        rope_parameters={"rope_type": "default", "rope_theta": value["rope.freq_base"]},
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=None, eos_token_id=value["tokenizer.ggml.eos_token_id"], pad_token_id=None,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu").tie_weights()
    filled = set()
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for tensor in reader.tensors:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            values = _unpermute(values, heads[kind]) if kind in heads else values
            parameters[hf_name(tensor.name)].copy_(torch.from_numpy(np.array(values)))
            filled.add(hf_name(tensor.name))
    assert filled == parameters.keys()
    # Buffers are not in the file: a fresh rotary embedding computes its own.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{_HF_NAMES[part]}.{suffix}"
    return f"{_HF_NAMES[stem]}.{suffix}"


_HF_NAMES = {gguf: hf for hf, gguf in _NAMES.items()}
