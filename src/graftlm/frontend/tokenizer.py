"""Text to token ids and back, through the `tokenizers` library; one object for the whole front end.

It knows the vocabulary and its special tokens, but no chat template, no request and no stream.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import decoders

from graftlm.contracts.errors import RequestError, StartupError
from graftlm.models.checkpoints.json_file import read_json_object

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.checkpoint import CheckpointFacts

logger = logging.getLogger(__name__)

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A vocabulary with its rules.

    `special_tokens` maps names such as "bos_token" to their text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, special_tokens: dict[str, str] | None = None) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.bos_token_id = self._special_id("bos_token")
        self.eos_token_id = self._special_id("eos_token")
        self.vocab_size = int(backend.get_vocab_size(with_added_tokens=True))
        self.is_byte_level = _is_byte_level(backend)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._text_bytes: dict[int, bytes] = dict.fromkeys(self._special_ids, b"")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens spelled out in it are recognized."""
        try:
            # Of the library's ways the one that lets other threads run meanwhile, and the fastest.
            return list(self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        except TypeError as error:  # how the library says that a string has a lone surrogate
            raise RequestError(
                "the text holds half of a UTF-16 surrogate pair and is no valid Unicode; send whole characters",
                param="prompt",
            ) from error

    @functools.cached_property
    def longest_token(self) -> int:
        """The length of the vocabulary's longest token, in characters or, for a byte-level one, in bytes."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids outside the vocabulary give none."""
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def text_bytes(self, token_id: int) -> bytes:
        """Return what the token adds to a decoded text: nothing for special tokens."""
        known = self._text_bytes.get(token_id)
        if known is None:
            known = self._text_bytes[token_id] = self.token_bytes(token_id)
        return known

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for, special tokens spelled out; half a character is possible."""
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte_level:
            try:
                return bytes([_BYTE_OF[char] for char in token])
            except KeyError:  # an added token that is spelled as itself
                return str(token).encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return str(token).replace("\u2581", " ").encode()

    def token_text(self, token_id: int) -> str:
        """Return one token as text for people; an incomplete character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        token_id = None if text is None else self.backend.token_to_id(text)
        return None if token_id is None else int(token_id)


def load_tokenizer(config: EngineConfig, facts: CheckpointFacts) -> Tokenizer | None:
    """Load the tokenizer that --tokenizer names, else the checkpoint's own; None when it carries none."""
    wish = config.model.tokenizer
    place = wish or facts.tokenizer
    if place is None:
        return None
    path = Path(place).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise StartupError(
            f"no tokenizer at {str(path)!r}; --tokenizer takes a tokenizer.json, a directory that holds one, "
            "or a .gguf file"
        )
    tokenizer = _load_gguf(path) if path.suffix == ".gguf" else _load_json(path)
    logger.debug("tokenizer_loaded path=%s vocab_size=%d", path, tokenizer.vocab_size)
    return tokenizer


def _load_json(path: Path) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise StartupError(f"{str(path)!r} is not a tokenizer.json that can be read: {error}") from error
    return Tokenizer(backend, special_tokens=_read_special_tokens(path.parent))


def _load_gguf(path: Path) -> Tokenizer:
    from graftlm.frontend.gguf_tokenizer import build_gguf_tokenizer
    from graftlm.models.checkpoints.gguf import read_gguf

    return build_gguf_tokenizer(read_gguf(path).metadata, source=str(path))


def _read_special_tokens(directory: Path) -> dict[str, str]:
    """Read the names of special tokens; tokenizer_config.json wins over special_tokens_map.json."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = directory / name
        if not file.is_file():
            continue
        data = read_json_object(file)
        for key in SPECIAL_TOKEN_NAMES:
            value = data.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether the decoder does nothing but map the byte alphabet back to bytes."""
    decoder: Any = backend.decoder
    if isinstance(decoder, decoders.Sequence):
        state = json.loads(decoder.__getstate__())
        return [part["type"] for part in state["decoders"]] in (["ByteLevel"], ["ByteLevel", "Fuse"])
    return isinstance(decoder, decoders.ByteLevel)


def _byte_alphabet() -> dict[str, int]:
    """The printable character by which byte-level vocabularies write each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
