"""Renders a conversation to prompt text with the checkpoint's own Jinja template, in a sandbox.

Templates come from strangers: they may compute text and nothing else. It knows no tokenizer and no HTTP.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from graftlm.contracts.errors import InvalidParameter, NotYetSupported, RequestError, StartupError

if TYPE_CHECKING:
    from jinja2.parser import Parser

    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.checkpoint import CheckpointFacts


_MESSAGES = 'give a list of messages, such as [{"role": "user", "content": "hi"}]'


class NoChatTemplate(RequestError):
    code = "no_chat_template"

    def __init__(self) -> None:
        super().__init__(
            "this model has no chat template, so messages cannot become a prompt; start the server with "
            "--chat-template FILE, or send a plain prompt to /v1/completions",
            param="messages",
        )


class ChatTemplateFailed(RequestError):
    """The template refused the messages, or is itself wrong."""

    code = "chat_template_failed"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the chat template cannot render these messages: {problem}", param="messages")


class ChatTemplate:
    """One compiled template; `special_tokens` (bos_token, eos_token, …) are visible to it by name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(
                f"the chat template is no valid Jinja: line {error.lineno}: {error.message}; "
                "give a working one with --chat-template FILE"
            ) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the prompt; it spells special tokens out, so encode it without adding any.

        `variables` are further names that the template may use.
        """
        names = {"tools": None, "documents": None, **self._special_tokens, **variables}
        plain = _plain_messages(messages)
        try:
            return self._template.render(names, messages=plain, add_generation_prompt=add_generation_prompt)
        except jinja2.TemplateError as error:
            raise ChatTemplateFailed(error.message or type(error).__name__) from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateFailed(f"{type(error).__name__}: {error}") from error


def load_chat_template(
    config: EngineConfig, facts: CheckpointFacts, special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """Take the template that --chat-template gives, as a file or as text, else the checkpoint's own."""
    wish = config.model.chat_template
    if wish is None:
        return None if facts.chat_template is None else ChatTemplate(facts.chat_template, special_tokens)
    if "{" in wish or "\n" in wish:
        return ChatTemplate(wish, special_tokens)
    path = Path(wish).expanduser()
    try:
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StartupError(
            f"--chat-template={wish!r} is neither a file that can be read ({reason}) nor a Jinja template"
        ) from error
    return ChatTemplate(source, special_tokens)


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write each content as one string: templates of text models know no lists of parts. Refuse what is none."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidParameter("messages", messages, cure=_MESSAGES)
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidParameter("messages", message, cure=_MESSAGES)
    return [{**message, "content": _plain_content(message.get("content"))} for message in messages]


def _plain_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidParameter(
            "messages", content, cure="give each message's content as a text, or a list of parts"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise NotYetSupported("messages", what=f"content of type {kind!r} (text is)")
        texts.append(part["text"])
    return "\n".join(texts)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes characters for HTML, which no model has learned."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
