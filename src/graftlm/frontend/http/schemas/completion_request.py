"""The body of POST /v1/completions.

It does not know the tokenizer: prompts stay text or ids.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from graftlm.contracts.errors import NotYetSupported
from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.schemas.sampling import SamplingFields, is_sendable
from graftlm.frontend.http.schemas.strict import MAX_TOKEN_ID, check_token_ids, wrong_shape
from graftlm.plugins.spelling import counted

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 1024

Prompt: TypeAlias = str | list[int]

_SHAPE = "a prompt is a string, a list of strings, a list of token ids or a list of lists of token ids"


def check_prompt(value: Any) -> list[Prompt]:
    """Return the prompts of a call, each as text or as token ids."""
    if isinstance(value, str):
        return [_text(value)]
    if not isinstance(value, list) or not value:
        raise wrong_shape(f"{_SHAPE}; it may not be empty" if value == [] else _SHAPE)
    kinds = set(map(type, value))
    if kinds == {str}:
        return [_text(text) for text in value]
    if kinds <= {int, float}:
        return [_ids(value)]
    if kinds == {list}:
        return [_ids(ids) for ids in value]
    raise wrong_shape(_SHAPE)


def _text(value: str) -> str:
    if not is_sendable(value):
        raise wrong_shape("it has a lone surrogate, which is not Unicode text")
    return value


def _ids(value: list[Any]) -> list[int]:
    if not value:
        raise wrong_shape("a list of token ids may not be empty")
    return check_token_ids(value, shape=_SHAPE)


_IDS_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "items": _IDS_SCHEMA},
    ],
    "description": "Text, texts, token ids or lists of token ids.",
}


class CompletionRequest(SamplingFields):
    """Continue one prompt or several."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}]}
    )

    prompt: Annotated[list[Prompt], PlainValidator(check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Log-probabilities of so many best tokens.")
    best_of: int | None = Field(None, ge=1, description="Only as large as n: it is not supported beyond.")
    suffix: str | None = Field(None, description="Not supported.")

    def check(self) -> None:
        """Refuse what is well-formed but cannot be served."""
        self.check_stream_options()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise NotYetSupported("best_of", what="choosing the best of more outputs than n")
        if self.suffix:
            raise NotYetSupported("suffix", what="text after the completion")
        choices = len(self.prompt) * (self.n or 1)
        if choices > MAX_CHOICES:
            raise InvalidField(
                f"prompt: {counted(len(self.prompt), 'prompt')} times n={self.n or 1} are {choices} outputs, and "
                f"one call may ask for {MAX_CHOICES}; send several calls", param="prompt",
            )  # fmt: skip

    @property
    def wanted_max_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def echoes_only(self) -> bool:
        """Tell whether no output is wanted: the log-probabilities of a text, as evaluation tools ask for them."""
        return bool(self.echo) and self.wanted_max_tokens == 0
