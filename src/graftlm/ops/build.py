"""What holds while a model is being built: its configuration, number format, device and op switches.

It does not know which layers there are; they report to it what was swapped and chosen, and at the end it
writes one ledger line for each distinct choice.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from graftlm.ops.entry_points import note_unmatched_replacements
from graftlm.ops.names import SAMPLING_OPS, OpSwitches, parse_switches
from graftlm.plugins import record

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig

logger = logging.getLogger(__name__)


class NoBuild(RuntimeError):
    """Something that needs the model's configuration was constructed outside of a build."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs the model's configuration; construct it inside `with building(config, …):`")


@dataclasses.dataclass(slots=True)
class BuildContext:
    """One build of one model in this process."""

    config: EngineConfig
    dtype: torch.dtype
    device: torch.device
    switches: OpSwitches
    enabled_custom_ops: Counter[str] = dataclasses.field(default_factory=Counter)
    disabled_custom_ops: Counter[str] = dataclasses.field(default_factory=Counter)
    swaps: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    """(class, replacement) -> how many objects"""
    choices: Counter[tuple[str, str, str]] = dataclasses.field(default_factory=Counter)
    """(op, method, reason) -> how many objects"""
    refusals: Counter[tuple[str, str, str]] = dataclasses.field(default_factory=Counter)
    """(op, implementation, why it cannot serve) -> how many objects"""
    instruction_sets: dict[str, str] = dataclasses.field(default_factory=dict)
    """implementation -> the instructions with which it computes here, "" where it has no choice"""
    failures: list[Exception] | None = None
    """What implementations raised when they were asked; None where that ends the build."""
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What floors above keep for the length of the build."""


_current: ContextVar[BuildContext | None] = ContextVar("graftlm_build", default=None)


@contextmanager
def building(
    config: EngineConfig, *, dtype: torch.dtype, device: torch.device, failures: list[Exception] | None = None
) -> Iterator[BuildContext]:
    """Make `config`, `dtype` and `device` those of every layer constructed inside the block.

    With `failures`, an implementation that raises when it is asked is refused, and its exception put there; it is
    for who wants to know what else would be built.
    """
    default_base = "none" if config.compilation.backend == "inductor" else "all"
    switches = parse_switches(config.compilation.custom_ops, default_base=default_base)
    context = BuildContext(config, dtype, device, switches, failures=failures)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
        _report(context)


@contextmanager
def building_aside(config: EngineConfig, *, dtype: torch.dtype, device: torch.device) -> Iterator[BuildContext]:
    """As `building`, for objects to compare with: every op is its reference, and nothing is recorded."""
    context = BuildContext(config, dtype, device, OpSwitches(base="none"))
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def find_build() -> BuildContext | None:
    """Return the build in progress, or None."""
    return _current.get()


def current_build() -> BuildContext:
    """Return the build in progress; raises NoBuild outside of `building`."""
    context = _current.get()
    if context is None:
        raise NoBuild("a layer")
    return context


def _report(context: BuildContext) -> None:
    for (cls, replacement), count in context.swaps.items():
        record("op_swapped", cls=cls, replacement=replacement, count=count)
        logger.info("op swapped cls=%s replacement=%s count=%d", cls, replacement, count)
    for (op, method, reason), count in context.choices.items():
        record(
            "op_dispatched", op=op, method=method, reason=reason, format=str(context.dtype).removeprefix("torch."),
            instruction_set=context.instruction_sets.get(method, ""), count=count,
        )  # fmt: skip
        logger.debug("op dispatched op=%s method=%s reason=%s count=%d", op, method, reason, count)
    for (op, implementation, reason), count in context.refusals.items():
        record("op_refused", op=op, implementation=implementation, reason=reason, count=count)
        logger.debug(
            "op implementation refused op=%s implementation=%s reason=%s count=%d",
            op,
            implementation,
            reason,
            count,
        )
    note_unmatched_replacements()
    built = set(context.enabled_custom_ops) | set(context.disabled_custom_ops)
    if built and (unused := sorted((context.switches.on | context.switches.off) - built - set(SAMPLING_OPS))):
        logger.warning("op switches without effect ops=%s: this model builds none of them", ",".join(unused))
