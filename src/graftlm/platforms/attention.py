"""Turns the name of an attention backend into its class path, and chooses where none is named.

A backend is imported only to be asked whether it can serve; what it computes is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from graftlm.contracts.attention import AttentionBackend
from graftlm.contracts.platform import AttentionQuestion
from graftlm.contracts.points import ATTENTION_BACKENDS
from graftlm.plugins import Plugin, UnknownPlugin, current_host, find_host
from graftlm.plugins.slow_calls import calling_at_start

logger = logging.getLogger(__name__)

#: The plain-torch reference, which every platform with a torch device can run.
TORCH_PAGED = "graftlm.ops.attention.torch_paged:TorchPagedAttention"


def attention_class_path(selected: str | None, *, preferred: Sequence[str], question: AttentionQuestion) -> str:
    """Return the class path of `selected` (a name, module:Class or module.Class), or of the first preferred one.

    An unknown name is an UnknownPlugin with the nearest names. A preferred backend that is not installed or cannot
    serve `question` is passed over; where none is left, it is the plain-torch reference.
    """
    host = find_host()
    named = {p.name: p for p in host.plugins(ATTENTION_BACKENDS)} if host is not None else {}
    if selected is None:
        found = (named[name] for name in preferred if name in named)
        return next((plugin.value for plugin in found if _can_serve(plugin, question)), TORCH_PAGED)
    if selected in named:
        return named[selected].value
    if ":" in selected or "." in selected:
        return selected
    if selected == "TORCH_PAGED":
        return TORCH_PAGED
    raise UnknownPlugin(selected, where="--attention-backend", known=[*named, "TORCH_PAGED"])


def _can_serve(plugin: Plugin, question: AttentionQuestion) -> bool:
    backend = current_host().load_plugin(plugin)
    if not (isinstance(backend, type) and issubclass(backend, AttentionBackend)):
        return True  # whoever asks for the class says what is wrong with it
    with calling_at_start(plugin, "supports"):
        refusal = backend.supports(question)
    if refusal:
        logger.info("attention backend passed over name=%s: %s", plugin.name, refusal)
    return not refusal
