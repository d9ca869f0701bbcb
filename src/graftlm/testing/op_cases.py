"""Pairs of a candidate and its reference for the suites of ops, with inputs and tolerance; knows no op.

A reference is the `forward_native` of the class that is replaced, or of the op's own class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from graftlm.config.engine_config import EngineConfig
from graftlm.ops.build import building_aside
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.dispatch import OpChoice, overrides
from graftlm.ops.examples import OpExample, Tolerance, fresh, tensors_in
from graftlm.ops.implementation import OpImplementation
from graftlm.ops.pluggable import unreplaced
from graftlm.plugins.resolve import resolve_class_path

#: The methods that a platform may choose.
METHODS = (
    "forward_native", "forward_cpu", "forward_cuda", "forward_rocm", "forward_xpu", "forward_tpu", "forward_oot",
)  # fmt: skip
_SEED = 7


@dataclasses.dataclass(frozen=True, slots=True)
class OpCase:
    """One way to compute one op object."""

    label: str
    candidate: Callable[..., Any]
    reference: Callable[..., Any]
    examples: list[OpExample]
    tolerance: Tolerance


def import_ops() -> None:
    """Import the modules of all built-in ops, so that the registry knows their names."""
    for module in ("activation", "norm", "rotary", "quantization.unquantized"):
        resolve_class_path(f"graftlm.layers.{module}:CustomOp")
    resolve_class_path("graftlm.ops.sampling:Sampler")


def cases_of_op(
    op_cls: type[CustomOp],
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    replaces: type[CustomOp] | None,
    methods: tuple[str, ...],
) -> list[OpCase]:
    """Return every way that `op_cls` offers to compute its example ops, among `methods`."""
    own = [m for m in methods if m == "forward_native" or overrides(op_cls, m)]
    cases = []
    with building_aside(EngineConfig(), dtype=dtype, device=torch.device(device)):
        for reference, op in _pairs(op_cls, replaces, dtype):
            examples = _examples(reference, dtype, device)
            tolerance = reference.tolerance(dtype)
            for method in own:
                label = f"{method} of {type(op).__name__}({op.extra_repr()}) in {dtype}"
                cases.append(OpCase(label, getattr(op, method), reference.forward_native, examples, tolerance))
    return cases


def cases_of_implementation(
    implementation_cls: type[OpImplementation], *, op_cls: type[CustomOp], dtype: torch.dtype, device: str = "cpu"
) -> list[OpCase]:
    """Return `implementation_cls` on each example op whose fixed shape it supports."""
    place = torch.device(device)
    cases = []
    with building_aside(EngineConfig(), dtype=dtype, device=place):
        for op in _example_ops(op_cls, op_cls):
            if implementation_cls.supports(device=place, dtype=dtype, shape=op.fixed_shape) is not True:
                continue
            implementation = implementation_cls(op)
            op.choice = OpChoice(f"{op.name}.{implementation_cls.__name__}", "under test", implementation)
            op.prepare_example(_generator(), dtype)
            examples = _examples(op, dtype, device)
            label = f"{type(op).__name__}({op.extra_repr()}) in {dtype}"
            cases.append(OpCase(label, implementation, op.forward_native, examples, op.tolerance(dtype)))
    return cases


def _examples(op: CustomOp, dtype: torch.dtype, device: str) -> list[OpExample]:
    """Generate on the CPU, so that every device gets the same numbers."""
    examples = op.example_inputs(_generator(), dtype)
    place = torch.device(device)
    return [dataclasses.replace(example, args=fresh(example.args, place)) for example in examples]


def plain_answers(cases: Iterable[OpCase]) -> dict[str, list[float]]:
    """Return all numbers that the cases answer, by case and example, as plain data."""
    found = {}
    for case in cases:
        for example in case.examples:
            for name, tensor in tensors_in(case.candidate(*fresh(example.args))):
                found[f"{case.label}, {example.label}, {name}"] = tensor.double().flatten().tolist()
    return found


def _pairs(
    op_cls: type[CustomOp], replaces: type[CustomOp] | None, dtype: torch.dtype
) -> list[tuple[CustomOp, CustomOp]]:
    """Return (reference, op): equal arguments, equal values of equal parameters."""
    ops = _example_ops(op_cls, replaces or op_cls)
    for op in ops:
        op.prepare_example(_generator(), dtype)
    if replaces is None:
        return [(op, op) for op in ops]
    references = _example_ops(replaces, replaces)
    for reference, op in zip(references, ops, strict=True):
        reference.prepare_example(_generator(), dtype)
        held = dict(op.named_parameters())
        for name, parameter in reference.named_parameters():
            if name in held and held[name].shape == parameter.shape:
                held[name].data.copy_(parameter.data)
        op.process_weights_after_loading()
    return list(zip(references, ops, strict=True))


def _example_ops(op_cls: type[CustomOp], asked: type[CustomOp]) -> list[CustomOp]:
    """Build `op_cls` with the arguments of `asked`'s examples, whatever replaces it."""
    with unreplaced():
        return list(cast("Any", asked.example_ops).__func__(op_cls))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
