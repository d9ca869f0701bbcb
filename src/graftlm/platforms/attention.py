"""Turns the name of an attention backend into its class path, from metadata alone; asks no backend anything."""

from __future__ import annotations

from collections.abc import Sequence

from graftlm.contracts.points import ATTENTION_BACKENDS
from graftlm.plugins import UnknownPlugin, find_host

#: The plain-torch reference, which every platform with a torch device can run.
TORCH_PAGED = "graftlm.ops.attention.torch_paged:TorchPagedAttention"


def attention_class_path(selected: str | None, *, preferred: Sequence[str]) -> str:
    """Return the class path of `selected` (a name, module:Class or module.Class), or of the first preferred one.

    An unknown name is an UnknownPlugin with the nearest names; without preference that is installed, it is the
    plain-torch reference.
    """
    host = find_host()
    named = {p.name: p.value for p in host.plugins(ATTENTION_BACKENDS)} if host is not None else {}
    if selected is None:
        return next((named[name] for name in preferred if name in named), TORCH_PAGED)
    if selected in named:
        return named[selected]
    if ":" in selected or "." in selected:
        return selected
    if selected == "TORCH_PAGED":
        return TORCH_PAGED
    raise UnknownPlugin(selected, where="--attention-backend", known=[*named, "TORCH_PAGED"])
