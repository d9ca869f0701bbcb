"""Compares what computes a built model's ops with their references, on generated inputs; refuses what is wrong.

`--verify-ops` runs it once in each worker, after the weights are loaded. It knows no op: each brings its examples
and its tolerance.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from graftlm.ops.build import building_aside
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import Comparison, OpExample, Tolerance, check_call, fresh
from graftlm.ops.pluggable import Construction, PluggableLayer
from graftlm.ops.refusal import OpRefused, Provider, Unverifiable, in_time, provider_of_code
from graftlm.ops.verify_weights import verify_weights
from graftlm.plugins import calling, record
from graftlm.plugins.deferred_imports import import_deferred
from graftlm.plugins.spelling import error_text

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig

logger = logging.getLogger(__name__)

_SEED = 20_240_229


def verify_ops(root: torch.nn.Module, config: EngineConfig, *, dtype: torch.dtype, device: torch.device) -> None:
    """Verify each distinct replaced or provided op in `root`, and how its layers multiply with packed weights.

    Raises OpRefused at the first wrong one. Every outcome is recorded as `op_verified` or `op_not_verified`.
    """
    import_deferred("--verify-ops")  # `torch.Generator` needs what only registers, and no touch of it brings that
    unverified: dict[str, str] = {}
    with torch.inference_mode():
        for op in _distinct(root):
            with in_time(_name_of(op), provider_of(op)):
                reason = _verify(op, config, dtype=dtype, device=device)
            if reason:
                unverified[_name_of(op)] = reason
        unverified |= verify_weights(root, seed=_SEED, dtype=dtype, device=device)
    for name, reason in sorted(unverified.items()):
        record("op_not_verified", op=name, reason=reason)
        logger.warning("op not verified op=%s: %s", name, reason)


def _distinct(root: torch.nn.Module) -> Iterator[PluggableLayer]:
    """Yield one of all those objects that are computed alike."""
    seen = set()
    for module in root.modules():
        if not isinstance(module, PluggableLayer):
            continue
        shape, method = getattr(module, "fixed_shape", ()), ""
        if isinstance(module, CustomOp):
            method = module.choice.method
        replaced = "asked_for" in module.__dict__
        if not replaced and method in ("", "forward_native"):
            continue
        key = (type(module), method, shape)
        if key not in seen:
            seen.add(key)
            yield module


def _verify(op: PluggableLayer, config: EngineConfig, *, dtype: torch.dtype, device: torch.device) -> str:
    """Return why `op` could not be verified, or ""."""
    if not isinstance(op, CustomOp):
        return f"{type(op).__qualname__} replaces a layer that has no reference of its own"
    try:
        reference = reference_of(op, config, dtype=dtype, device=device)
    except Unverifiable as error:
        return str(error)
    examples = list(reference.example_inputs(torch.Generator().manual_seed(_SEED), dtype))
    if not examples:
        return f"{type(reference).__qualname__} has no example_inputs to compare with"
    tolerance, provider = reference.tolerance(dtype), provider_of(op)
    largest = 0.0
    for example in examples:
        on_device = dataclasses.replace(example, args=fresh(example.args, device))
        outcome = _compare(op, reference, on_device, tolerance)
        if outcome.problem:
            problem = f"with {example.label}, {outcome.problem}"
            raise OpRefused(op.name, computed_by=provider, problem=problem)
        largest = max(largest, outcome.largest_error)
    record(
        "op_verified", op=op.name, method=op.choice.method, computed_by=provider.path, by=provider.plugin,
        examples=len(examples), largest_error=largest, tolerance=str(tolerance),
    )  # fmt: skip
    logger.info("op verified op=%s computed_by=%s largest_error=%.3g", op.name, provider.path, largest)
    return ""


def reference_of(op: CustomOp, config: EngineConfig, *, dtype: torch.dtype, device: torch.device) -> CustomOp:
    """Return the object whose `forward_native` tells what `op` must compute.

    It is `op` itself, unless a plugin replaced the class: then one of the class that the model asked for, built
    from the same arguments, with the values of the same parameters. Raises Unverifiable when it cannot get them.
    """
    asked_for: Construction | None = op.__dict__.get("asked_for")
    if asked_for is None:
        return op
    with building_aside(config, dtype=dtype, device=device):
        reference = asked_for.build()
    assert isinstance(reference, CustomOp)
    held = dict(op.named_parameters())
    for name, parameter in reference.named_parameters():
        source = held.get(name)
        if source is None or source.shape != parameter.shape:
            raise Unverifiable(f"{type(op).__qualname__} keeps no parameter {name!r} of the reference's shape")
        parameter.data.copy_(source.data)
    return reference


def provider_of(op: PluggableLayer) -> Provider:
    """Tell whose code computes `op`."""
    implementation = op.choice.implementation if isinstance(op, CustomOp) else None
    return provider_of_code(type(op) if implementation is None else type(implementation))


def _compare(op: CustomOp, reference: CustomOp, example: OpExample, tolerance: Tolerance) -> Comparison:
    native: Callable[..., Any] = reference.forward_native
    try:
        with calling(provider_of(op).plugin, "--verify-ops"):
            return check_call(op, native, example, tolerance)
    except Exception as error:
        try:
            native(*fresh(example.args))
        except Exception as own_error:
            raise Unverifiable(
                f"the reference of {op.name} itself fails with {example.label}: {own_error!r}"
            ) from own_error
        return Comparison(float("inf"), f"it raises {error_text(error)}")


def _name_of(op: PluggableLayer) -> str:
    return op.name if isinstance(op, CustomOp) else type(op).__qualname__
