"""Tells whose code a model is made of: the engine's and the kernels', or somebody else's. It runs none of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_KNOWN = frozenset(("graftlm", "graftlm_kernels", "torch", "builtins", "functools"))


def modules_of_others(model: torch.nn.Module) -> tuple[dict[str, torch.nn.Module], str | None]:
    """Return the outermost modules whose code wants to run in every step, and why that is impossible, or None."""
    others: dict[str, torch.nn.Module] = {}
    for name, module, reason in _look_for_others(model, ""):
        if module is model or hasattr(module, "compute_logits"):
            return {}, reason  # more than its forward is called
        others[name] = module
    return others, None


def _look_for_others(module: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.nn.Module, str]]:
    reason = _why_other(module)
    if reason is not None:
        yield name, module, f"{name or 'the model'} is computed by {reason}"
        return
    for own_name, child in module.named_children():
        yield from _look_for_others(child, f"{name}.{own_name}" if name else own_name)


def _why_other(module: torch.nn.Module) -> str | None:
    """Name what is not the engine's own in a module itself, or None."""
    choice = getattr(module, "choice", None)
    method = getattr(module, "linear_method", None)
    # A method may only prepare weights for another one, which multiplies.
    parts = [module, method, getattr(method, "computed_by", None), getattr(module, "backend", None)]
    parts.append(getattr(choice, "implementation", None))
    for part in parts:
        if not _is_known(type(part).__module__):
            return f"{type(part).__module__}.{type(part).__qualname__}"
    if "forward" in vars(module) and choice is None:
        return "a forward of its own"
    for held in vars(module).values():  # a kernel function replaced by name
        if callable(held) and not isinstance(held, torch.nn.Module | torch.Tensor | type):
            for where in (type(held).__module__, getattr(held, "__module__", None)):
                if isinstance(where, str) and not _is_known(where):
                    return f"{where}.{getattr(held, '__qualname__', type(held).__qualname__)}"
    return None


def _is_known(module_name: Any) -> bool:
    return str(module_name).partition(".")[0] in _KNOWN
