"""Chat templates: rendering as the reference does, in a sandbox, with errors that name the problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graftlm.config import EngineConfig
from graftlm.contracts.checkpoint import CheckpointFacts
from graftlm.contracts.errors import NotYetSupported, StartupError
from graftlm.frontend.chat_template import ChatTemplate, ChatTemplateFailed, NoChatTemplate, load_chat_template
from graftlm.frontend.text_assets import TextAssets

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say <b>"hé"</b>\n  twice '},
    {"role": "assistant", "content": "no"},
    {"role": "user", "content": ""},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = [
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    """
{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0].content -%}
    {%- set rest = messages[1:] -%}
{%- endif -%}
{{ bos_token }}[{{ system | trim }}]
    {% for m in rest %}
        {% if m.role == 'assistant' %}
            {% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
        {% else %}
{{ loop.index }}:{{ m.content | trim }}
        {% endif %}
        {% if loop.index > 2 %}{% break %}{% endif %}
    {% endfor %}
""",
    "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ tools is none }}{{ extra | default('-') }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
def test_prompts_equal_those_of_the_reference(source: str) -> None:
    """White space, loop controls, tojson and generation blocks render as in transformers."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = ChatTemplate(source, TOKENS)
    (expected,), _ = render_jinja_template(
        conversations=[MESSAGES], chat_template=source, add_generation_prompt=True, **TOKENS
    )

    assert template.render(MESSAGES) == expected


def test_parts_of_text_become_one_text() -> None:
    """A content of parts is joined by newlines; None is empty; other kinds are not yet supported."""
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert template.render(messages) == "[a\nb][]"
    with pytest.raises(NotYetSupported, match="image_url"):
        template.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].name + '!' }}", "name"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_a_template_that_fails_is_a_bad_request_with_its_words(source: str, says: str) -> None:
    """What the template objects to reaches the caller; the sandbox keeps it from everything else."""
    with pytest.raises(ChatTemplateFailed, match=says) as caught:
        ChatTemplate(source).render(MESSAGES)

    assert caught.value.status == 400 and caught.value.param == "messages"


def test_a_template_with_an_error_stops_the_start() -> None:
    """Broken Jinja is found when it is loaded, with its line."""
    with pytest.raises(StartupError, match=r"line 2.*--chat-template"):
        ChatTemplate("ok\n{% for %}")


def test_dates_can_be_written() -> None:
    """strftime_now gives today's date in the template's own form."""
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]).startswith("2")


def test_the_users_template_wins_over_the_checkpoints(tmp_path: Path) -> None:
    """--chat-template takes a file or Jinja text; a file that is not there is an error that names it."""
    facts = CheckpointFacts(path="", format="", hf_config={}, chat_template="own")
    file = tmp_path / "template.jinja"
    file.write_text("from file")

    def load(wish: str | None) -> Any:
        config = EngineConfig()
        config.model.chat_template = wish
        template = load_chat_template(config, facts, {})
        return template and template.source

    assert load(None) == "own"
    assert load(str(file)) == "from file"
    assert load("{{ messages }}") == "{{ messages }}"
    with pytest.raises(StartupError, match=r"missing\.jinja"):
        load("missing.jinja")


def test_without_a_template_the_error_names_the_flag() -> None:
    """A chat request to a model without a template is refused with the cure."""
    with pytest.raises(NoChatTemplate, match="--chat-template"):
        TextAssets().encode_chat(MESSAGES)
