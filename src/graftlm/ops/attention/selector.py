"""Asks the platform, once for each distinct question of this process, which attention backend answers it.

It knows neither platforms nor backends.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from typing import Any

from graftlm.contracts.attention import AttentionBackend
from graftlm.contracts.errors import StartupError
from graftlm.contracts.platform import AttentionQuestion
from graftlm.contracts.points import ATTENTION_BACKENDS
from graftlm.plugins import record
from graftlm.plugins.named import is_path, load_named, plugin_named
from graftlm.plugins.resolve import split_path
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.plugins.spelling import kind_of

logger = logging.getLogger(__name__)

#: The platform that was asked, and its answer: a backend, or why there is none.
_answers: dict[
    tuple[int, str | None, AttentionQuestion], tuple[Any, type[AttentionBackend] | InvalidAttentionBackend]
] = {}


class InvalidAttentionBackend(StartupError, ValueError):
    """The platform has no backend for a question, or named something that is none."""

    def __init__(self, device_name: str, *, problem: str, question: AttentionQuestion) -> None:
        super().__init__(
            f"Invalid attention backend for {device_name}: {problem}; choose another with --attention-backend, by "
            f"name or as module:Class (asked for {question})"
        )


def get_attn_backend(question: AttentionQuestion, selected_backend: str | None = None) -> type[AttentionBackend]:
    """Return the backend class for `question`; `selected_backend` is the user's choice, if there is one.

    A refusal, InvalidAttentionBackend, is an answer too: every layer that asks the same hears it.
    """
    from graftlm.platforms import current_platform

    key = (id(current_platform), selected_backend, question)
    if key not in _answers:
        # The platform is kept beside the answer: its id must not be given to another one.
        _answers[key] = (current_platform, _ask(question, selected_backend))
    answer = _answers[key][1]
    if isinstance(answer, InvalidAttentionBackend):
        raise answer.with_traceback(None)
    return answer


def backends_in_use() -> list[str]:
    """Return the names of the backends that the current platform has named in this process."""
    from graftlm.platforms import current_platform

    answers = [answer for (asked, *_), (_, answer) in _answers.items() if asked == id(current_platform)]
    return list(dict.fromkeys(answer.name for answer in answers if isinstance(answer, type)))


def _ask(
    question: AttentionQuestion, selected_backend: str | None
) -> type[AttentionBackend] | InvalidAttentionBackend:
    from graftlm.platforms import current_platform
    from graftlm.platforms.hooks import call_hook

    device_name = current_platform.device_name
    answer = call_hook("get_attn_backend_cls", selected_backend, question)
    if not answer:
        problem = f"it does not know {selected_backend!r}" if selected_backend else "it named none"
        return InvalidAttentionBackend(device_name, problem=problem, question=question)
    if not isinstance(answer, str):
        problem = f"it answered {answer!r}, {kind_of(answer)}; it must name a class as module:Class"
        return InvalidAttentionBackend(device_name, problem=problem, question=question)
    backend = load_named(ATTENTION_BACKENDS, answer, what=f"attention backend of {device_name}")
    if refusal := _refusal(backend, answer, question):
        return InvalidAttentionBackend(device_name, problem=refusal, question=question)
    record("attention_asked", question=question, answer=answer)
    if selected_backend not in (None, backend.name) and not is_answer(str(selected_backend), answer):
        logger.warning(
            "attention backend not taken --attention-backend=%s named=%s: %s chose otherwise",
            selected_backend, answer, device_name,
        )  # fmt: skip
    logger.debug("attention asked question=%s answer=%s", question, answer)
    checked: type[AttentionBackend] = backend
    return checked


def is_answer(selected_backend: str, answer: str) -> bool:
    """Tell whether a platform's answer is what the user selected, be they names or paths."""
    wished, named = (plugin_named(ATTENTION_BACKENDS, text) for text in (selected_backend, answer))
    if wished is not None and named is not None:
        return wished.identity == named.identity
    return is_path(selected_backend) and is_path(answer) and split_path(selected_backend) == split_path(answer)


def _refusal(backend: Any, answer: str, question: AttentionQuestion) -> str | None:
    """Return why `backend` cannot serve, or None."""
    if not (isinstance(backend, type) and issubclass(backend, AttentionBackend)):
        return f"{answer} is {backend!r}; it must be a subclass of {AttentionBackend.__module__}.AttentionBackend"
    if inspect.isabstract(backend):
        missing = ", ".join(sorted(backend.__abstractmethods__))
        return f"{answer} does not implement {missing}"
    plugin = plugin_named(ATTENTION_BACKENDS, answer)
    with calling_at_start(plugin, "supports") if plugin is not None else contextlib.nullcontext():
        reason = backend.supports(question)
    return f"{answer} cannot serve it: {reason}" if reason else None
