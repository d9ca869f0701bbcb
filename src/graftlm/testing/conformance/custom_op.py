"""The conformance suite of CustomOp classes: those of the engine, new ones, and replacements."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from graftlm.ops.custom_op import CustomOp
from graftlm.plugins.resolve import path_of, resolve_class_path
from graftlm.testing.conformance.op_checks import OpChecks
from graftlm.testing.op_cases import METHODS, OpCase, cases_of_op, import_ops, plain_answers
from graftlm.testing.suite import NotDeclared


class CustomOpConformance(OpChecks):
    """Subclass it with `subject` naming a CustomOp class, and `replaces` naming the class it replaces, if it does.

    Every forward method that the class overrides is tested; `methods` leaves out those that cannot run on this
    machine.
    """

    contract = "graftlm.ops.CustomOp"
    replaces: ClassVar[type[CustomOp] | str | None] = None
    methods: ClassVar[tuple[str, ...]] = METHODS

    @classmethod
    def replaced(cls) -> type[CustomOp] | None:
        import_ops()
        if not isinstance(cls.replaces, str):
            return cls.replaces
        found: type[CustomOp] = resolve_class_path(cls.replaces, what=f"{cls.__name__}.replaces")
        return found

    def cases(self, dtype: torch.dtype) -> list[OpCase]:
        return cases_of_op(
            self.load(), dtype=dtype, device=self.device, replaces=self.replaced(), methods=self.methods
        )

    def test_it_is_a_named_op_class(self) -> None:
        """A subclass of CustomOp with an op name; a replacement subclasses what it replaces and keeps its name."""
        cls, replaced = self.load(), self.replaced()
        self.require(isinstance(cls, type) and issubclass(cls, CustomOp), f"it is {cls!r}")
        self.require(bool(cls.name), "it has no op name; decorate it with @CustomOp.register('name')")
        if replaced is not None:
            self.require(issubclass(cls, replaced), f"it does not subclass {replaced.__qualname__}")
            self.require(cls.name == replaced.name, f"its op name is {cls.name!r}, not {replaced.name!r}")

    def test_it_has_a_reference(self) -> None:
        """`forward_native` computes the op in plain torch."""
        cls = self.load()
        self.require(cls.forward_native is not CustomOp.forward_native, "it has no forward_native of its own")

    def test_it_brings_examples(self) -> None:
        """`example_ops`, `example_inputs` and `tolerance` make it comparable, also for --verify-ops."""
        cases = self.cases(torch.float32)
        self.require(bool(cases), "example_ops yields no object")
        for case in cases:
            self.require(bool(case.examples), f"{case.label}: example_inputs yields no call")
            self.require(bool(case.tolerance.reason), f"{case.label}: its tolerance gives no reason")
            self.require(case.tolerance.rtol <= 0.1, f"{case.label}: its tolerance forgives anything")

    def elsewhere_call(self) -> tuple[str, tuple[Any, ...]]:
        replaced = self.replaced()
        path = path_of(replaced) if replaced is not None else None
        if replaced is not None and path is None:
            raise NotDeclared("what it replaces cannot be imported by another process")
        return "graftlm.testing.conformance.custom_op:answers", (
            self.subject_path(),
            path,
            self.methods,
            self.device,
        )


def answers(path: str, replaces: str | None, methods: tuple[str, ...], device: str) -> dict[str, list[float]]:
    """Return what the op answers in float32; called in another process."""
    import_ops()
    replaced = resolve_class_path(replaces) if replaces else None
    cases = cases_of_op(
        resolve_class_path(path), dtype=torch.float32, device=device, replaces=replaced, methods=methods
    )
    with torch.inference_mode():
        return plain_answers(cases)
