"""The kinds that a GGUF file's metadata must have where this engine reads them; a file from a stranger may lie.

It does not know what a value means, nor which ones must be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graftlm.models.checkpoints.errors import BrokenCheckpoint


def check_metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise BrokenCheckpoint for the first known entry whose value is of another kind than its readers expect."""
    for key, (wanted, holds) in _KINDS.items():
        value = metadata.get(key)
        if value is not None and not holds(value):
            raise BrokenCheckpoint(path, problem=f"{key}={_shown(value)} is no {wanted}", cure="convert it again")


def _list_of(*kinds: type) -> Callable[[Any], bool]:
    """A list whose elements are of these classes exactly; a vocabulary is long, so no loop in Python."""
    return lambda value: isinstance(value, list) and set(map(type, value)) <= set(kinds)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_Kind = tuple[str, Callable[[Any], bool]]
_TEXT: _Kind = ("text", _is_text)
_SIZE: _Kind = ("size", _is_size)
_ID: _Kind = ("token id", _is_id)
_NUMBER: _Kind = ("number", _is_number)
_FLAG: _Kind = ("truth value", _is_bool)

_KINDS: dict[str, _Kind] = {
    "general.architecture": _TEXT,
    "llama.context_length": _SIZE,
    "llama.embedding_length": _SIZE,
    "llama.feed_forward_length": _SIZE,
    "llama.block_count": _SIZE,
    "llama.attention.head_count": _SIZE,
    "llama.attention.head_count_kv": _SIZE,
    "llama.attention.key_length": _SIZE,
    "llama.rope.dimension_count": _SIZE,
    "llama.rope.freq_base": _NUMBER,
    "llama.rope.scaling.type": _TEXT,
    "llama.rope.scaling.factor": _NUMBER,
    "llama.attention.layer_norm_rms_epsilon": _NUMBER,
    "tokenizer.chat_template": _TEXT,
    "tokenizer.ggml.model": _TEXT,
    "tokenizer.ggml.pre": _TEXT,
    "tokenizer.ggml.tokens": ("list of texts", _list_of(str)),
    "tokenizer.ggml.merges": ("list of texts", _list_of(str)),
    "tokenizer.ggml.scores": ("list of numbers", _list_of(float)),
    "tokenizer.ggml.token_type": ("list of whole numbers", _list_of(int)),
    **{
        f"tokenizer.ggml.{name}_token_id": _ID
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask")
    },
    **{f"tokenizer.ggml.{name}": _FLAG for name in ("add_bos_token", "add_eos_token", "add_space_prefix")},
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
