"""What `graftlm plugins explain` can be asked of: each kind, and the extension point that brings it."""

from __future__ import annotations

from graftlm.config.arguments import UsageError
from graftlm.plugins.spelling import nearest

#: Kind → extension point; "" where a kind has none of its own.
KINDS = {
    "platform": "platform_plugins", "model": "models", "op": "", "kernel": "", "attention": "attention_backends",
    "quantization": "quantization_methods", "worker": "workers", "communicator": "communicators",
    "executor": "executors", "scheduler": "schedulers", "loader": "model_loaders", "source": "model_sources",
    "stat_logger": "stat_logger_plugins", "endpoint": "endpoint_plugins", "general": "general_plugins",
    "plugin": "",
}  # fmt: skip

#: What one of a kind is called, where the kind's own name does not say it.
_LABELS = {
    "attention": "attention backend", "quantization": "quantization method", "kernel": "kernel function",
    "loader": "model loader", "source": "model source", "general": "general plugin", "endpoint": "endpoint plugin",
    "stat_logger": "stat logger",
}  # fmt: skip

#: Kinds of which there is nothing to say without a name.
NAMED = {"model": "LlamaForCausalLM", "op": "RMSNorm", "plugin": "cpu"}

#: Kinds of which all that are enabled take part; of the others, one is chosen.
ALL_TAKE_PART = frozenset({"stat_logger", "endpoint", "general"})

_OF_POINT = {point: kind for kind, point in KINDS.items() if point}


def label_of(kind: str) -> str:
    """Return what one of a kind is called in a sentence."""
    return _LABELS.get(kind, kind)


def split_question(words: list[str]) -> tuple[str, str]:
    """Return the kind ("" for any) and the name ("" for none); a kind may be spelled as its extension point.

    A kind that needs a name has one, save `model`: a checkpoint may say which one is meant.
    """
    match words:
        case [kind] if kind in KINDS:
            name = ""
        case [name]:
            kind = ""
        case [kind, name] if kind in KINDS or kind in _OF_POINT:
            kind = _OF_POINT.get(kind, kind)
        case [kind, _]:
            raise UsageError(
                f"explain cannot tell of {kind!r}; {nearest(kind, KINDS) or 'use ' + ', '.join(KINDS)}"
            )
        case _:
            raise UsageError(f"explain takes a kind and a name, not {' '.join(words)!r}")
    if kind != "model":
        require_name(kind, name)
    return kind, name


def require_name(kind: str, name: str) -> None:
    """Refuse a question of a kind of which there is nothing to say without a name."""
    if kind in NAMED and not name:
        other = ", or tell with --model or --url which one is served" if kind == "model" else ""
        raise UsageError(f"explain {kind} needs a name, such as {NAMED[kind]}{other}")
