"""The conformance suite of op implementations: one provider's way to compute one op."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from graftlm.ops.custom_op import CustomOp, op_registry
from graftlm.ops.implementation import OpImplementation
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.conformance.op_checks import OpChecks
from graftlm.testing.op_cases import OpCase, cases_of_implementation, import_ops, plain_answers
from graftlm.testing.suite import NotDeclared


class OpImplementationConformance(OpChecks):
    """Subclass it with `subject` naming an OpImplementation class and `op` the op: its switch name or class."""

    contract = "graftlm.ops.OpImplementation"
    op: ClassVar[str | type[CustomOp]] = ""

    @classmethod
    def op_cls(cls) -> type[CustomOp]:
        return find_op(cls.op)

    def cases(self, dtype: torch.dtype) -> list[OpCase]:
        return cases_of_implementation(self.load(), op_cls=self.op_cls(), dtype=dtype, device=self.device)

    def test_it_is_a_complete_implementation_class(self) -> None:
        """A subclass of OpImplementation that can be called."""
        self.complete_class(OpImplementation)

    def test_what_it_supports_is_said_plainly(self) -> None:
        """`supports` returns True, or the reason why not, for any device, number format and shape."""
        for device in ("cpu", "meta"):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8):
                for shape in ((), (1,), (64,), (7,), (96, 64)):
                    answer = self.load().supports(device=torch.device(device), dtype=dtype, shape=shape)
                    self.require(
                        answer is True or (isinstance(answer, str) and bool(answer)),
                        f"supports(device={device}, dtype={dtype}, shape={shape}) returns {answer!r}",
                    )

    def test_construction_reads_nothing_of_the_op(self) -> None:
        """It is constructed before the op's own constructor has run: it keeps `op` and reads it when called."""
        op = object.__new__(self.op_cls())
        torch.nn.Module.__init__(op)
        if self.load().supports(device=torch.device(self.device), dtype=torch.float32, shape=()) is not True:
            raise NotDeclared("it supports no op of unknown shape in float32")
        try:
            self.load()(op)
        except Exception as error:
            self.fail(f"its constructor raises {type(error).__name__}: {error}")

    def elsewhere_call(self) -> tuple[str, tuple[Any, ...]]:
        return "graftlm.testing.conformance.op_implementation:answers", (self.subject_path(), self.op, self.device)


def find_op(op: str | type[CustomOp]) -> type[CustomOp]:
    """Return the op class of a switch name, a path, or itself."""
    import_ops()
    if not isinstance(op, str):
        return op
    found: type[CustomOp] = resolve_class_path(op) if ":" in op or "." in op else op_registry.get(op)
    return found


def answers(path: str, op: str | type[CustomOp], device: str) -> dict[str, list[float]]:
    """Return what the implementation answers in float32; called in another process."""
    cases = cases_of_implementation(
        resolve_class_path(path), op_cls=find_op(op), dtype=torch.float32, device=device
    )
    with torch.inference_mode():
        return plain_answers(cases)
