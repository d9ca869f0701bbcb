"""Example inputs of an op, the tolerance of its answers, and the comparison of two answers.

It does not know any op: each states its own examples and tolerance beside its reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from graftlm.plugins.spelling import counted


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an answer may lie from the reference, and why: `atol * rms(reference) + rtol * |reference|`.

    `atol` is a share of the reference's root mean square, so that it holds whatever the weights' scale.
    """

    rtol: float
    atol: float
    reason: str

    def __str__(self) -> str:
        return f"rtol={self.rtol:.1e} atol={self.atol:.1e} ({self.reason})"


@dataclasses.dataclass(frozen=True, slots=True)
class OpExample:
    """One call of an op. `may_overwrite` are the positions of arguments whose memory the op may overwrite."""

    label: str
    args: tuple[Any, ...]
    may_overwrite: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Comparison:
    """What came of one call: the largest error, and what is wrong ("" if nothing is)."""

    largest_error: float = 0.0
    problem: str = ""


def roundings(dtype: torch.dtype, *, full: int, half: int, reason: str) -> Tolerance:
    """Allow `full` roundings of float32, or `half` of a shorter format, whose sums are kept in float32."""
    count = full if dtype in (torch.float32, torch.float64) else half
    eps = torch.finfo(dtype).eps
    return Tolerance(rtol=count * eps, atol=count * eps, reason=reason)


def exactly(reason: str) -> Tolerance:
    """Allow no difference at all."""
    return Tolerance(rtol=0.0, atol=0.0, reason=reason)


def random_numbers(
    generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> torch.Tensor:
    """Return normal numbers; the same for every format, up to rounding."""
    return (torch.randn(shape, generator=generator, device=generator.device) * scale).to(dtype)


def fresh(value: Any, device: torch.device | None = None) -> Any:
    """Copy a nest of tensors, tuples, lists, dicts and dataclasses, with the tensors' strides."""
    match value:
        case torch.Tensor():
            target = device or value.device
            if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
                return value.clone().to(target)
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=target)
            return copy.copy_(value)
        case tuple() | list():
            return type(value)(fresh(item, device) for item in value)
        case dict():
            return {key: fresh(item, device) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return dataclasses.replace(value, **fresh(fields, device))
    return value


def tensors_in(value: Any, name: str = "result") -> list[tuple[str, torch.Tensor]]:
    """Return every tensor of a nest with its place in it."""
    match value:
        case torch.Tensor():
            return [(name, value)]
        case tuple() | list():
            return [found for i, item in enumerate(value) for found in tensors_in(item, f"{name}[{i}]")]
        case dict():
            return [found for key, item in value.items() for found in tensors_in(item, f"{name}[{key!r}]")]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
            return [found for key, item in fields for found in tensors_in(item, f"{name}.{key}")]
    return []


def compare(found: Any, expected: Any, tolerance: Tolerance) -> Comparison:
    """Compare two answers tensor by tensor: kind, shape, number format, values."""
    got, wanted = tensors_in(found), tensors_in(expected)
    if [name for name, _ in got] != [name for name, _ in wanted]:
        kind = f"{type(found).__name__} with {counted(len(got), 'tensor')}"
        kinds = f"{kind}, not {type(expected).__name__} with {len(wanted)}"
        return Comparison(float("inf"), f"it returns {kinds}")
    worst = Comparison()
    for (name, tensor), (_, reference) in zip(got, wanted, strict=True):
        if tuple(tensor.shape) != tuple(reference.shape):
            problem = f"{name} has shape {list(tensor.shape)}, the reference {list(reference.shape)}"
            return Comparison(float("inf"), problem)
        if tensor.dtype != reference.dtype:
            return Comparison(float("inf"), f"{name} is {tensor.dtype}, the reference {reference.dtype}")
        if tensor.device != reference.device:
            return Comparison(float("inf"), f"{name} lies on {tensor.device}, the reference on {reference.device}")
        one = _compare_values(name, tensor, reference, tolerance)
        if one.largest_error > worst.largest_error or (one.problem and not worst.problem):
            worst = one
    return worst


def _compare_values(name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Comparison:
    if not found.numel():
        return Comparison()
    if not found.is_floating_point():
        differing = int((found != expected).sum())
        error = float((found.double() - expected.double()).abs().max())
        return Comparison(error, f"{name} differs at {differing} of {found.numel()} places" if differing else "")
    a, b = found.double(), expected.double()
    meaning = torch.isfinite(b)
    if not torch.equal(a[~meaning].nan_to_num(nan=3.0), b[~meaning].nan_to_num(nan=3.0)) or not bool(
        torch.isfinite(a[meaning]).all()
    ):
        return Comparison(float("inf"), f"{name} is infinite or NaN at other places than the reference")
    a, b = a[meaning], b[meaning]
    if not a.numel():
        return Comparison()
    errors = (a - b).abs()
    allowed = tolerance.atol * b.square().mean().sqrt() + tolerance.rtol * b.abs()
    largest = float(errors.max())
    if bool((errors <= allowed).all()):
        return Comparison(largest)
    place = int((errors - allowed).argmax())
    return Comparison(
        largest,
        f"{name} is {float(a[place]):.6g} where the reference is {float(b[place]):.6g}; "
        f"largest error {largest:.3g}, tolerance {tolerance}",
    )


def check_call(
    candidate: Callable[..., Any], reference: Callable[..., Any], example: OpExample, tolerance: Tolerance
) -> Comparison:
    """Call both on copies of the example and compare; a write to an argument that is not granted is wrong too."""
    expected = reference(*fresh(example.args))
    args = fresh(example.args)
    outcome = compare(candidate(*args), expected, tolerance)
    if not outcome.problem and (changed := overwritten(example, args)):
        outcome.problem = f"it overwrites {changed}, which it must leave unchanged"
    return outcome


def overwritten(example: OpExample, args: tuple[Any, ...]) -> str:
    """Name the first tensor in `args` that a call changed without the op's permission, or return ""."""
    for i, (before, after) in enumerate(zip(example.args, args, strict=True)):
        if i in example.may_overwrite:
            continue
        name = f"argument {i}"
        for (place, was), (_, now) in zip(tensors_in(before, name), tensors_in(after, name), strict=True):
            if not torch.equal(was.to(now.device).nan_to_num(), now.nan_to_num()):
                return place
    return ""
