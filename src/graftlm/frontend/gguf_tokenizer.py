"""Builds the tokenizer that a GGUF file describes in its metadata.

It reads no file: it gets the metadata. It knows the names of pre-tokenizers, not the models that use them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import (
    Tokenizer as Backend,
)

from graftlm.contracts.errors import StartupError
from graftlm.frontend.tokenizer import Tokenizer
from graftlm.plugins.spelling import nearest_names

logger = logging.getLogger(__name__)

CURE = "pass --tokenizer with the model's tokenizer.json (or its directory)"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: tokenizer.ggml.pre -> the rule by which text is cut before merging. "gpt2" and "digits" are built of the
#: library's own parts, the others are patterns.
PRE_TOKENIZERS: dict[str, str] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "digits"),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx", "smaug-bpe"), _LLAMA3
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "tekken": _TEKKEN,
}
#: Vocabularies in which a whole word that is a token stays whole, and which begin with BOS unless told otherwise.
_WHOLE_WORDS_AND_BOS = {
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken",
}  # fmt: skip
#: Vocabularies made for composed characters.
_COMPOSED = {"qwen2"}


class TokenType(IntEnum):
    """What GGUF says of each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_gguf_tokenizer(metadata: Mapping[str, Any], *, source: str) -> Tokenizer:
    """Build the tokenizer of a GGUF file from its metadata; `source` names the file in errors."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    if not tokens:
        raise StartupError(f"{source!r} carries no vocabulary (tokenizer.ggml.tokens); {CURE}")
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            backend, adds_bos = _byte_level(metadata, tokens, source)
        case "llama":
            backend, adds_bos = _sentencepiece(metadata, tokens, source), True
        case kind:
            raise StartupError(
                f"tokenizer.ggml.model={kind!r} of {source!r} is not yet supported ('gpt2' and 'llama' are); {CURE}"
            )
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    special = _special_tokens(metadata, tokens)
    _add_post_processor(backend, metadata, special, adds_bos=adds_bos)
    return Tokenizer(backend, special_tokens=special)


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> tuple[Backend, bool]:
    """Byte-level BPE; returns it and whether it begins with BOS by default."""
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        logger.warning("gguf_pre_tokenizer_missing file=%s used=default", source)
        name = "default"
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        near = nearest_names(str(name), PRE_TOKENIZERS)
        raise StartupError(
            f"tokenizer.ggml.pre={name!r} of {source!r} is unknown"
            + (f" (near: {', '.join(near)})" if near else "")
            + f", and a guess would give wrong tokens; {CURE}"
        )
    whole = name in _WHOLE_WORDS_AND_BOS
    backend = _bpe(
        source, vocab=_vocabulary(tokens), merges=_merges(metadata, source), ignore_merges=whole, fuse_unk=False
    )
    backend.decoder = decoders.ByteLevel()
    if name in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    match rule:
        case "gpt2":
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "digits":
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        case pattern:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
    return backend, whole


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> Backend:
    """SentencePiece BPE: merges follow from the scores, and unknown characters fall back to bytes."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise StartupError(f"{source!r} has no score for each token (tokenizer.ggml.scores); {CURE}")
    vocabulary = _vocabulary(tokens)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    backend = _bpe(
        source,
        vocab=vocabulary,
        merges=_merges_from_scores(vocabulary, scores),
        unk_token=tokens[unknown] if unknown is not None and unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    space_first = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if space_first else spaces
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if space_first else parts)
    return backend


def _bpe(source: str, **options: Any) -> Backend:
    try:
        return Backend(models.BPE(**options))
    except Exception as error:  # the library raises bare Exception
        raise StartupError(f"{source!r}: its vocabulary and merges do not fit ({error}); {CURE}") from error


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _merges(metadata: Mapping[str, Any], source: str) -> list[tuple[str, str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise StartupError(f"{source!r} carries no merges (tokenizer.ggml.merges); {CURE}")
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    return pairs


def _merges_from_scores(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All ways to put a token together from two others, tokens of higher score first."""
    ranked = []
    for token, token_id in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-float(scores[token_id]), vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Keep control and user-defined tokens whole; only control tokens are special."""
    control = [t for t, kind in zip(tokens, types, strict=False) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)]
    plain = [t for t, kind in zip(tokens, types, strict=False) if kind == TokenType.USER_DEFINED]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {}
    for name, key in names.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            found[name] = tokens[token_id]
    return found


def _add_post_processor(
    backend: Backend, metadata: Mapping[str, Any], special: Mapping[str, str], *, adds_bos: bool
) -> None:
    """Put BOS before and EOS behind a text where the file wants them."""
    before = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)) and "bos_token" in special
    behind = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and "eos_token" in special
    if not (before or behind):
        return
    bos, eos = special.get("bos_token", ""), special.get("eos_token", "")
    single = [*([bos] if before else []), "$A", *([eos] if behind else [])]
    used = {text for text, wanted in ((bos, before), (eos, behind)) if wanted}
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(text, backend.token_to_id(text)) for text in sorted(used)]
    )
