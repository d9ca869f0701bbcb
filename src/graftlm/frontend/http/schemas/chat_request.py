"""The body of POST /v1/chat/completions.

It does not know the chat template: messages stay messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from graftlm.contracts.errors import NotYetSupported
from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.schemas.sampling import MAX_TOKENS, SamplingFields, is_sendable
from graftlm.frontend.http.schemas.strict import StrictModel, not_yet, wrong_shape

_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART_SCHEMA}, {"type": "null"}],
    "description": "Text, or a list of text parts (joined by line ends).",
}


def check_content(value: Any) -> str | None:
    """Return a message's content as one text."""
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, list) and value:
        text = "\n".join(_part_text(part) for part in value)
    else:
        raise wrong_shape("content is a string or a list of text parts")
    if text is not None and not is_sendable(text):
        raise wrong_shape("it has a lone surrogate, which is not Unicode text")
    return text


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_audio", "file", "video_url", "audio_url", "refusal"):
        raise not_yet(f"content of type {kind!r}")
    if kind != "text" or not isinstance(part.get("text"), str) or part.keys() != {"type", "text"}:
        raise wrong_shape('a content part is {"type": "text", "text": …}')
    text: str = part["text"]
    return text


class ChatMessage(StrictModel):
    """One message; what the role does not need is left out."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(check_content), WithJsonSchema(_CONTENT_SCHEMA)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(None, description="What an assistant called before.")
    tool_call_id: str | None = Field(None, description="Which call a tool message answers.")
    refusal: str | None = Field(None, description="Accepted as clients send it back; not used.")
    annotations: list[Any] | None = Field(None, max_length=0, description="Accepted when empty.")
    audio: None = None
    function_call: None = None

    def for_template(self) -> dict[str, Any]:
        """Return what a chat template sees of the message."""
        fields = {"role": self.role, "content": self.content if self.content is not None else ""}
        extra = {name: getattr(self, name) for name in ("name", "tool_calls", "tool_call_id")}
        return {**fields, **{name: value for name, value in extra.items() if value is not None}}


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]


def check_messages(messages: list[ChatMessage]) -> None:
    """Refuse messages without anything to say."""
    for place, message in enumerate(messages):
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise InvalidField(
                f"messages[{place}].content is missing; a message of role {message.role!r} needs text",
                param=f"messages[{place}].content",
            )


class TemplateFields(StrictModel):
    """What the chat template is told, in chat completions and in /tokenize."""

    add_generation_prompt: bool | None = Field(None, description="End with the assistant's opening; default true.")
    continue_final_message: bool | None = Field(None, description="Leave the last message open, to go on with it.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More names for the chat template.")

    def template_options(self) -> tuple[bool, bool]:
        """Return (add_generation_prompt, continue_final_message), which exclude each other."""
        going_on = bool(self.continue_final_message)
        if going_on and self.add_generation_prompt:
            raise InvalidField(
                "continue_final_message=true is not possible with add_generation_prompt=true: "
                "the last message is either left open or followed by a new one",
                param="continue_final_message",
            )
        opening = not going_on if self.add_generation_prompt is None else self.add_generation_prompt
        return opening, going_on


class ChatRequest(SamplingFields, TemplateFields):
    """Answer a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}],
        }
    )

    messages: Messages = Field(description="The conversation; each message has a role and its content as text.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="The newer name of max_tokens; default: to the context's end."
    )
    logprobs: bool | None = Field(None, description="Return the log-probability of each token.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="And of so many best ones; needs logprobs.")
    response_format: dict[str, Any] | None = Field(None, description='Only {"type": "text"} is supported yet.')
    tools: list[Any] | None = Field(None, description="Not yet supported.")
    tool_choice: str | dict[str, Any] | None = Field(None, description='Only "none" and "auto", without tools.')
    functions: list[Any] | None = Field(None, description="Not supported.")
    function_call: str | dict[str, Any] | None = Field(None, description="Not supported.")
    parallel_tool_calls: bool | None = Field(None, description="Accepted; there are no tools yet.")
    modalities: list[str] | None = Field(None, description='Only ["text"].')
    prediction: dict[str, Any] | None = Field(None, description="Accepted; a hint that changes no output.")

    def check(self) -> None:
        """Refuse what is well-formed but cannot be served."""
        self.check_stream_options()
        check_messages(self.messages)
        if self.tools:
            raise NotYetSupported("tools", what="calling tools")
        if self.tool_choice not in (None, "none", "auto"):
            raise NotYetSupported("tool_choice", what="calling tools")
        if self.functions or self.function_call not in (None, "none", "auto"):
            raise NotYetSupported("functions" if self.functions else "function_call", what="calling functions")
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise NotYetSupported("response_format", what=f"type {self.response_format.get('type')!r}")
        if self.response_format is not None and len(self.response_format) > 1:
            raise InvalidField('response_format: only {"type": "text"} is possible', param="response_format")
        if self.modalities not in (None, ["text"]):
            raise NotYetSupported("modalities", what="anything but text")
        if self.top_logprobs and not self.logprobs:
            raise InvalidField("top_logprobs is not possible without logprobs=true", param="top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidField(
                f"max_completion_tokens={self.max_completion_tokens} contradicts max_tokens={self.max_tokens}; "
                "send one of them", param="max_completion_tokens",
            )  # fmt: skip

    @property
    def wanted_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
