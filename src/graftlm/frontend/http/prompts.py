"""From what callers send to token ids: texts and conversations.

It does not know how ids are generated from; AsyncLLM holds tokenizer and chat template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graftlm.frontend.chat_template import NoChatTemplate
from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.schemas.chat_request import ChatMessage, TemplateFields

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM

#: Characters above which rendering and encoding go to a thread, so that streams do not wait for them.
LONG_TEXT = 16_384

_RESERVED = frozenset({"messages", "add_generation_prompt", "self"})


async def encode(llm: AsyncLLM, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Return the ids of `text`; raises RequestError when the model carries no tokenizer."""
    if len(text) > LONG_TEXT:
        return await asyncio.to_thread(llm.encode, text, add_special_tokens=add_special_tokens)
    return llm.encode(text, add_special_tokens=add_special_tokens)


async def encode_conversation(
    llm: AsyncLLM, messages: Sequence[ChatMessage], fields: TemplateFields, *, add_special_tokens: bool = False
) -> list[int]:
    """Return the ids of the prompt that the chat template makes of `messages`.

    The template spells special tokens out, so the tokenizer adds none unless asked to.
    """
    if llm.chat_template is None:
        raise NoChatTemplate
    text = render(llm.chat_template, messages, fields)
    return await encode(llm, text, add_special_tokens=add_special_tokens)


def render(template: Any, messages: Sequence[ChatMessage], fields: TemplateFields) -> str:
    """Render the conversation; with continue_final_message, up to the last message's last character."""
    opening, going_on = fields.template_options()
    variables = fields.chat_template_kwargs or {}
    if reserved := _RESERVED & variables.keys():
        name = min(reserved)
        raise InvalidField(
            f"chat_template_kwargs.{name} is not possible: the name is the server's own",
            param=f"chat_template_kwargs.{name}",
        )
    plain = [_for_template(template.source, message) for message in messages]
    text: str = template.render(plain, add_generation_prompt=opening, **variables)
    return _up_to_last_message(text, plain) if going_on else text


def _for_template(source: str, message: ChatMessage) -> dict[str, Any]:
    """Call a developer message a system message where the template was made before there were any."""
    fields = message.for_template()
    if fields["role"] == "developer" and "developer" not in source:
        fields["role"] = "system"
    return fields


def _up_to_last_message(text: str, messages: Sequence[Mapping[str, Any]]) -> str:
    content = str(messages[-1]["content"]).rstrip()
    end = text.rfind(content) if content else -1
    if end < 0:
        raise InvalidField(
            "continue_final_message is not possible: the last message is empty, or the template changes it",
            param="continue_final_message",
        )
    return text[: end + len(content)]
