"""What a checkpoint brings for text: tokenizer, chat template, and the ids that end a sequence.

It turns prompts and conversations into token ids; it knows no request and no engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graftlm.contracts.errors import InvalidParameter, RequestError, StartupError
from graftlm.frontend.chat_template import ChatTemplate, NoChatTemplate, load_chat_template
from graftlm.frontend.tokenizer import Tokenizer, load_tokenizer
from graftlm.models.checkpoints import read_facts

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.checkpoint import CheckpointFacts

_ALWAYS_ENCODED_CHARS = 2**20
#: A normalizer may make a text shorter before it is cut into tokens.
_MARGIN = 4


class NoTokenizer(RequestError):
    code = "no_tokenizer"

    def __init__(self, param: str = "prompt") -> None:
        super().__init__(
            f"{param} is text, but this model carries no tokenizer; send token ids, or start with --tokenizer PATH",
            param=param,
        )


class TextTooLong(RequestError):
    code = "context_length_exceeded"

    def __init__(self, param: str, *, num_chars: int, limit: int) -> None:
        super().__init__(
            f"{param} has {num_chars} characters, far more than the model's context of {limit} tokens can hold; "
            "shorten it, or start the server with a larger --max-model-len",
            param=param,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class TextAssets:
    """The text side of one model; any part may be missing, and asking for it then is a RequestError."""

    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    eos_token_ids: Sequence[int] = ()
    max_model_len: int | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if not isinstance(text, str):
            raise InvalidParameter("prompt", text, cure="give a text")
        if self.tokenizer is None:
            raise NoTokenizer
        self._check_length(text, "prompt")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Write a conversation as one prompt; encode it without adding special tokens."""
        if self.chat_template is None:
            raise NoChatTemplate
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Render a conversation and encode it; the template has spelled special tokens out already."""
        prompt = self.render_chat(messages, add_generation_prompt=add_generation_prompt, **variables)
        if self.tokenizer is None:
            raise NoTokenizer("messages")
        self._check_length(prompt, "messages")
        return self.tokenizer.encode(prompt, add_special_tokens=False)

    def _check_length(self, text: str, param: str) -> None:
        """Refuse what no context could hold before it is encoded, which takes a hundred bytes of memory a token."""
        if self.tokenizer is None or self.max_model_len is None or len(text) <= _ALWAYS_ENCODED_CHARS:
            return
        if len(text) > _MARGIN * self.max_model_len * self.tokenizer.longest_token:
            raise TextTooLong(param, num_chars=len(text), limit=self.max_model_len)


def load_text_assets(config: EngineConfig) -> TextAssets:
    """Load everything from the checkpoint that a resolved configuration names."""
    facts = read_facts(config.model.path, config.model.format or config.model.load_format)
    tokenizer = load_tokenizer(config, facts)
    special_tokens = {} if tokenizer is None else tokenizer.special_tokens
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=load_chat_template(config, facts, special_tokens),
        eos_token_ids=_eos_token_ids(facts, config.model.hf_config, tokenizer),
        max_model_len=config.model.max_model_len,
    )


def _eos_token_ids(
    facts: CheckpointFacts, hf_config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """All ids by which any of the checkpoint's files says that a sequence ends."""
    own = None if tokenizer is None else tokenizer.eos_token_id
    said = (facts.generation_config.get("eos_token_id"), hf_config.get("eos_token_id"), own)
    return tuple(dict.fromkeys(token_id for value in said for token_id in _as_ids(value)))


def _as_ids(value: Any) -> Iterable[int]:
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if wrong := [token_id for token_id in ids if type(token_id) is not int]:
        raise StartupError(
            f"the checkpoint says eos_token_id={wrong[0]!r}, which is no token id; correct it in config.json or "
            "generation_config.json"
        )
    return ids
