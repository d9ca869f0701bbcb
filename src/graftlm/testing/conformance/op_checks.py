"""The checks that ops and op implementations share; it knows neither how cases are made nor any op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from graftlm.ops.examples import compare, exactly, fresh, overwritten, tensors_in
from graftlm.testing.elsewhere import as_elsewhere, elsewhere
from graftlm.testing.op_cases import OpCase, plain_answers
from graftlm.testing.suite import NotDeclared, Suite


class OpChecks(Suite):
    """Not for authors: subclass CustomOpConformance or OpImplementationConformance."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)
    #: Where to compute, as torch names it.
    device: ClassVar[str] = "cpu"

    def cases(self, dtype: torch.dtype) -> list[OpCase]:
        """Return what is to be compared."""
        raise NotImplementedError

    def all_cases(self) -> list[OpCase]:
        cases = [case for dtype in self.dtypes for case in self.cases(dtype)]
        if not cases:
            raise NotDeclared("it supports no example of the op in the formats that are tested")
        return cases

    def test_answers_equal_the_reference(self) -> None:
        """What `forward_native` of the op returns: as many tensors, their shapes and number formats, their values
        within the op's tolerance.
        """
        for case in self.all_cases():
            for example in case.examples:
                with torch.inference_mode():
                    expected = case.reference(*fresh(example.args))
                    found = self._call(case, example.label, case.candidate, example.args)
                outcome = compare(found, expected, case.tolerance)
                self.require(not outcome.problem, f"{case.label}, {example.label}: {outcome.problem}")

    def test_arguments_are_left_unchanged(self) -> None:
        """An argument's memory is overwritten only where the op's docstring, and so its examples, grant it."""
        for case in self.all_cases():
            for example in case.examples:
                args = fresh(example.args)
                with torch.inference_mode():
                    case.candidate(*args)
                changed = overwritten(example, args)
                self.require(not changed, f"{case.label}, {example.label}: it overwrites {changed}")

    def test_no_state_from_call_to_call(self) -> None:
        """Equal arguments give equal answers, to the last bit, whatever was computed between; an answer stays as it
        is when the op is called again.
        """
        same = exactly("the same code on the same numbers")
        for case in self.all_cases():
            with torch.inference_mode():
                for example in case.examples:
                    first = case.candidate(*fresh(example.args))
                    kept = fresh(first)
                    for other in case.examples:
                        case.candidate(*fresh(other.args))
                    outcome = compare(first, kept, same)
                    self.require(
                        not outcome.problem,
                        f"{case.label}, {example.label}: a later call changes an earlier answer",
                    )
                    outcome = compare(case.candidate(*fresh(example.args)), kept, same)
                    self.require(
                        not outcome.problem,
                        f"{case.label}, {example.label}: after other calls, {outcome.problem or 'it differs'}",
                    )

    def test_every_process_answers_alike(self) -> None:
        """Ranks and restarts agree: nothing depends on the process, its id or its hash seed."""
        function, args = self.elsewhere_call()
        theirs = elsewhere().call(function, *args)
        cases = self.cases(torch.float32)
        with torch.inference_mode(), as_elsewhere():
            ours = plain_answers(cases)
        for name, numbers in ours.items():
            outcome = compare(_tensor(theirs.get(name)), _tensor(numbers), exactly("the same code"))
            self.require(not outcome.problem, f"{name}: another process answers differently: {outcome.problem}")

    def elsewhere_call(self) -> tuple[str, tuple[Any, ...]]:
        """Name the function, and its arguments, that returns `plain_answers` in another process."""
        raise NotImplementedError

    def _call(self, case: OpCase, label: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            found = function(*fresh(args))
        except Exception as error:
            self.fail(f"{case.label}, {label}: it raises {type(error).__name__}: {error}")
        if not tensors_in(found):
            self.fail(f"{case.label}, {label}: it returns {type(found).__name__}, which holds no tensor")
        return found


def _tensor(numbers: list[float] | None) -> torch.Tensor:
    return torch.tensor(numbers or [], dtype=torch.float64)
