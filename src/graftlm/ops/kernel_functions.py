"""Kernel functions by name: the innermost computations that a platform may replace before any of them runs.

Importing this module imports no torch. It does not know what the functions compute; whoever calls one binds it
once, at construction, so that a call costs no look-up.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from graftlm.plugins import Registry, RegistryError, UnknownKey, calling, find_host, record_counted
from graftlm.plugins.registry import value_text

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

#: The engine's own, by name; a test holds the table and the decorators together.
BUILT_IN_KERNELS: dict[str, str] = {
    "paged_attention.decode": "graftlm.ops.attention.torch_paged:paged_decode",
    "paged_attention.prefill": "graftlm.ops.attention.torch_paged:paged_prefill",
    "paged_attention.write": "graftlm.ops.attention.torch_paged:paged_write",
    "sampling.best_token": "graftlm.ops.sampling.choose:best_token",
    "sampling.inverse_transform": "graftlm.ops.sampling.choose:inverse_transform",
}

#: Those that attention calls: they run only where the backend of the engine itself computes it.
ATTENTION_KERNELS = frozenset(name for name, path in BUILT_IN_KERNELS.items() if ".attention." in path)

_references: dict[str, str] = dict(BUILT_IN_KERNELS)
_overrides: Registry[Callable[..., Any]] = Registry("kernel_functions", kind="kernel override")
#: Which names the current host's process has bound already: what is replaced afterwards would never run.
_bound: weakref.WeakKeyDictionary[PluginHost, set[str]] = weakref.WeakKeyDictionary()


class BoundAlready(RegistryError):
    """An override of a function that an object of this process has bound: it would never run there."""

    def __init__(self, name: str, *, claimant: str) -> None:
        super().__init__(
            f"kernel override {name!r} by {claimant} comes too late: an object has bound the function already; "
            "call override_kernel in Platform.register_triton_kernel_overrides, or in a general plugin"
        )


def overridable(name: str) -> Callable[[FunctionT], FunctionT]:
    """Name a function that `override_kernel` may replace; it stays as it is, and is the reference."""

    def decorate(function: FunctionT) -> FunctionT:
        path = f"{function.__module__}:{function.__qualname__}"
        if _references.setdefault(name, path) != path:
            raise ValueError(f"the kernel name {name!r} belongs to {_references[name]}; choose another for {path}")
        return function

    return decorate


def kernel_names() -> list[str]:
    """Return the names of all kernel functions: the engine's, and those of modules imported so far."""
    return sorted(_references)


def override_kernel(name: str, function: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Run `function` (or what "module:function" names) wherever the kernel function `name` would run.

    Call it in `Platform.register_triton_kernel_overrides`, or in a general plugin of the worker's role. It takes
    the reference's parameters. Another override of the same name is an error unless `replace`; so is one that comes
    too late to run.
    """
    if name not in _references:
        raise UnknownKey("kernel function", name, known=kernel_names())
    host = find_host()
    if host is not None and name in _bound.get(host, ()) and not _holds(name, function):
        raise BoundAlready(name, claimant=value_text(function))
    _overrides.register(name, function, replace=replace)


def kernel_override(name: str) -> tuple[str, str] | None:
    """Return path and distribution of what replaces the kernel function `name`, without importing it, or None."""
    return (value_text(_overrides.peek(name)), _overrides.owner(name)) if name in _overrides else None


def is_bound(name: str) -> bool:
    """Tell whether an object of this process has bound the kernel function `name`, replaced or not."""
    host = find_host()
    return host is not None and name in _bound.get(host, ())


def bind_kernel(function: FunctionT, name: str) -> FunctionT:
    """Return what runs as the kernel function `name`, whose reference is `function`; call it once per object."""
    host = find_host()
    if host is not None:
        _bound.setdefault(host, set()).add(name)
    if name not in _overrides:
        return function
    owner = _overrides.owner(name)
    chosen = _overrides.get(name)
    with calling(owner, f"kernel override {name}"):
        _check(name, chosen, function)
    record_counted("kernel_replaced", kernel=name, function=value_text(chosen), owner=owner)
    logger.debug("kernel replaced kernel=%s function=%s owner=%s", name, value_text(chosen), owner)
    return chosen  # type: ignore[return-value]


def _holds(name: str, function: Callable[..., Any] | str) -> bool:
    return name in _overrides and value_text(_overrides.peek(name)) == value_text(function)


def _check(name: str, chosen: Any, reference: Callable[..., Any]) -> None:
    """Refuse what cannot be called as the reference is."""
    if not callable(chosen):
        raise TypeError(f"the override of kernel function {name!r} is {chosen!r}; it must be a function")
    wanted = inspect.signature(reference)
    try:
        inspect.signature(chosen).bind(*wanted.parameters)
    except TypeError as error:
        raise TypeError(
            f"the override of kernel function {name!r} cannot be called as {value_text(reference)}{wanted} is: "
            f"{error}"
        ) from None
    except ValueError:  # a compiled function may have no signature that Python can read
        return
