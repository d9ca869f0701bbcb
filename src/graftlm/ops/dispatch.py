"""Chooses, once per op object, which method or implementation computes it, and says why.

It knows the order of choice and nothing of any op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graftlm.contracts.points import OP_IMPLEMENTATIONS
from graftlm.ops.entry_points import available, find, load_if_sound
from graftlm.ops.implementation import OpImplementation
from graftlm.plugins import calling
from graftlm.plugins.slow_calls import calling_at_start
from graftlm.plugins.spelling import error_text

if TYPE_CHECKING:
    from graftlm.contracts.platform import Platform
    from graftlm.ops.build import BuildContext
    from graftlm.ops.custom_op import CustomOp


@dataclasses.dataclass(frozen=True, slots=True)
class OpChoice:
    """What computes one op object, and why."""

    method: str
    reason: str
    implementation: OpImplementation | None = None

    def bound_to(self, op: CustomOp) -> Callable[..., Any]:
        if self.implementation is not None:
            return self.implementation
        method: Callable[..., Any] = getattr(op, self.method)
        return method


def choose(op: CustomOp, build: BuildContext, *, enabled: bool, shape: tuple[int, ...]) -> OpChoice:
    """Choose: the switch, the class's own method for the platform, a provider, the reference."""
    from graftlm.platforms import current_platform

    if not enabled:
        return OpChoice("forward_native", f"switched off by {build.switches.reason(op.name)}")
    method = current_platform.op_method
    if overrides(type(op), method):
        return OpChoice(method, f"own {method} for {current_platform.device_name}")
    implementation, reason = _first_provider(op, build, current_platform, shape)
    if implementation is not None:
        return OpChoice(reason, f"provider {reason}", implementation)
    return OpChoice("forward_native", reason)


def overrides(cls: type[CustomOp], method: str) -> bool:
    """Tell whether an op class has its own `method`."""
    from graftlm.ops.custom_op import CustomOp

    own = getattr(cls, method, None)
    return own is not None and own is not getattr(CustomOp, method, None)


def _first_provider(
    op: CustomOp, build: BuildContext, platform: Platform, shape: tuple[int, ...]
) -> tuple[OpImplementation | None, str]:
    """Return the first implementation that supports the op and its name, or None and why there is none."""
    refusals: list[str] = []
    for provider in dict.fromkeys((*build.config.compilation.op_providers, *platform.op_providers)):
        if provider == "native":
            return None, "provider native"
        name = f"{op.name}.{provider}"
        try:
            answer = _ask(name, op, build, shape)
        except Exception as error:
            if build.failures is None:
                raise
            build.failures.append(error)
            answer = f"it raised {error_text(error)}"
        if answer is None:
            continue
        if not isinstance(answer, str):
            return answer, name
        build.refusals[op.name, name, answer] += 1
        refusals.append(f"{name}: {answer}")
    if refusals:
        return None, "no provider fits (" + "; ".join(refusals) + ")"
    return None, "the reference; no other implementation for this platform"


def _ask(name: str, op: CustomOp, build: BuildContext, shape: tuple[int, ...]) -> OpImplementation | str | None:
    """Return an implementation for the op, or why there is none; None where nobody provides it."""
    cls = _load(name, build)
    if cls is None:
        return None
    plugin = find(OP_IMPLEMENTATIONS, name)
    asked: set[str] = build.state.setdefault("op_implementations_asked", set())
    # Watched for the first of a model's many objects only: a watch takes a thread.
    watched = calling if name in asked else calling_at_start
    asked.add(name)
    with watched(plugin, "supports"):
        answer = cls.supports(device=build.device, dtype=build.dtype, shape=shape)
    if answer is not True:
        return str(answer or "not supported")
    if name not in build.instruction_sets:
        with watched(plugin, "instruction_set"):
            build.instruction_sets[name] = str(cls.instruction_set())
    with watched(plugin, "construction"):
        return cls(op)


def _load(name: str, build: BuildContext) -> type[OpImplementation] | None:
    """Load one implementation, once per build; None when no plugin provides it."""
    loaded: dict[str, type[OpImplementation] | None] = build.state.setdefault("op_implementations", {})
    if name not in loaded:
        cls = load_if_sound(OP_IMPLEMENTATIONS, name) if name in available(OP_IMPLEMENTATIONS) else None
        if cls is not None and not (isinstance(cls, type) and issubclass(cls, OpImplementation)):
            raise TypeError(
                f"the op implementation {name!r} is {cls!r}; it must subclass graftlm.ops.OpImplementation"
            )
        loaded[name] = cls
    return loaded[name]
