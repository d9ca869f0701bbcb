"""Turns what a checkpoint says, in Hugging Face's words, into the engine's own values.

It reads a plain dictionary; it knows neither files nor architectures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graftlm.config.errors import InvalidCheckpointValue, InvalidOption

_CONTEXT_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
)  # fmt: skip
#: What every reader of a config takes for granted about entries that are there.
_SIZES = (
    *_CONTEXT_LENGTH_KEYS, "hidden_size", "intermediate_size", "ffn_dim", "num_hidden_layers", "vocab_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "word_embed_proj_dim",
)  # fmt: skip
_POSITIVE_NUMBERS = ("rms_norm_eps", "layer_norm_eps", "rope_theta")
_OBJECTS = ("rope_scaling", "rope_parameters", "quantization_config")
_LARGEST_SIZE = 2**31 - 1


def check_values(hf_config: Mapping[str, Any]) -> None:
    """Refuse entries of a config that no model could be built from; those that are missing are not its business."""
    for key in _SIZES:
        value = hf_config.get(key)
        if value is not None and not (type(value) is int and 1 <= value <= _LARGEST_SIZE):
            raise InvalidCheckpointValue(key, value, problem="it must be a positive whole number")
    for key in _POSITIVE_NUMBERS:
        value = hf_config.get(key)
        if value is not None and not _is_positive(value):
            raise InvalidCheckpointValue(key, value, problem="it must be a positive number")
    for key in _OBJECTS:
        value = hf_config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidCheckpointValue(key, value, problem="it must be a JSON object")
        if value is not None and not _is_positive(value.get("factor") or 1):
            raise InvalidCheckpointValue(key, value, problem="its factor must be a positive number")
    heads, kv_heads = hf_config.get("num_attention_heads"), hf_config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        raise InvalidCheckpointValue(
            "num_key_value_heads", kv_heads, problem=f"it does not divide num_attention_heads={heads}"
        )


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def merge_overrides(hf_config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `overrides` over the checkpoint's config; objects are merged, everything else is replaced."""
    merged = dict(hf_config)
    for key, value in overrides.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = merge_overrides(inner, value)
        merged[key] = value
    return merged


def context_length(hf_config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the model was made for, or None where the checkpoint does not say.

    Linear rope scaling stretches the positions that the checkpoint names; a `llama3` scaling already names the
    stretched length.
    """
    lengths = [int(hf_config[key]) for key in _CONTEXT_LENGTH_KEYS if hf_config.get(key)]
    if not lengths:
        return None
    scaling = hf_config.get("rope_scaling") or hf_config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind == "linear":
        return int(min(lengths) * float(scaling.get("factor", 1.0)))
    return min(lengths)


def resolve_max_model_len(asked: int | None, hf_config: Mapping[str, Any]) -> int:
    """Decide the context length: the user's wish, up to what the model was made for."""
    limit = context_length(hf_config)
    if asked is None:
        if limit is None:
            raise InvalidOption(
                "--max-model-len", None, problem="the checkpoint does not say how long a sequence may be",
                cure="give a number of tokens",
            )  # fmt: skip
        return limit
    if limit is not None and asked > limit:
        raise InvalidOption(
            "--max-model-len", asked, problem=f"the model was made for {limit} tokens",
            cure=f"use {limit} or fewer, or change the model's own number with --hf-overrides",
        )  # fmt: skip
    return asked


def resolve_dtype(asked: str, supported: Sequence[str], *, device_name: str) -> str:
    """Decide the number format of computation; 'auto' is the platform's first."""
    if asked == "auto":
        return supported[0]
    if asked not in supported:
        raise InvalidOption(
            "--dtype", asked, problem=f"{device_name} does not compute in it", cure=f"use {' or '.join(supported)}"
        )
    return asked


def quantization_of(hf_config: Mapping[str, Any]) -> str | None:
    """Return the quantization method that the checkpoint names."""
    method = (hf_config.get("quantization_config") or {}).get("quant_method")
    return str(method) if method else None


def check_divisible(tensor_parallel_size: int, hf_config: Mapping[str, Any]) -> None:
    """Refuse a tensor-parallel size that cuts a head or a row of the vocabulary in two."""
    heads = int(hf_config.get("num_attention_heads") or 0)
    if not heads:  # no attention: the architecture itself knows what it can divide
        return
    parts = {"attention heads": heads, "key-value heads": int(hf_config.get("num_key_value_heads") or heads)}
    for key, what in (
        ("intermediate_size", "feed-forward columns"),
        ("ffn_dim", "feed-forward columns"),
        ("vocab_size", "vocabulary entries"),
    ):
        if hf_config.get(key):
            parts[what] = int(hf_config[key])
    if all(count % tensor_parallel_size == 0 for count in parts.values()):
        return
    sizes = [n for n in range(1, heads + 1) if all(count % n == 0 for count in parts.values())]
    numbers = " and ".join(f"{count} {what}" for what, count in list(parts.items())[:2])
    others = [f"{count} {what}" for what, count in list(parts.items())[2:] if count % tensor_parallel_size]
    raise InvalidOption(
        "--tensor-parallel-size",
        tensor_parallel_size,
        problem=f"it does not divide the model's {numbers}" + "".join(f", nor its {other}" for other in others),
        cure=f"sizes that divide: {', '.join(map(str, sizes))}",
    )
