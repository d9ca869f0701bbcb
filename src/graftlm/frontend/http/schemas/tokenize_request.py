"""The bodies of POST /tokenize and POST /detokenize, in the shapes vLLM's users know."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.schemas.chat_request import ChatMessage, TemplateFields, check_messages
from graftlm.frontend.http.schemas.strict import MAX_TOKEN_ID, StrictModel, check_token_ids, wrong_shape


class TokenizeRequest(TemplateFields):
    """A text, or messages for the chat template: exactly one of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "Hello, world"}]})

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)] | None = None
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add its own; default: for a prompt, not for messages."
    )
    return_token_strs: bool | None = Field(None, description="Add each token's text.")

    def check(self) -> None:
        """Refuse both or neither of prompt and messages, and template wishes about a plain prompt."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidField("send exactly one of prompt and messages", param="prompt")
        if self.messages is not None:
            check_messages(self.messages)
            return
        for name in TemplateFields.model_fields:
            if getattr(self, name) is not None:
                raise InvalidField(f"{name} is only possible with messages", param=name)


def _check_tokens(value: Any) -> list[int]:
    shape = "tokens is a list of token ids"
    if not isinstance(value, list):
        raise wrong_shape(shape)
    return check_token_ids(value, shape=shape)


_TOKENS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}


class DetokenizeRequest(StrictModel):
    """Token ids to turn into text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [1, 2, 3]}]})

    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_check_tokens), WithJsonSchema(_TOKENS_SCHEMA)]
